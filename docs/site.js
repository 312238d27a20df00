// What the theme leaves to be done for those who do not see the page, or have no mouse: landmarks of one name get numbers,
// and what scrolls sideways can be reached by Tab.
document$.subscribe(() => {
  const seen = new Map();
  for (const nav of document.querySelectorAll("nav")) {
    const label = document.getElementById(nav.getAttribute("aria-labelledby") ?? "");
    const name = nav.getAttribute("aria-label") ?? label?.textContent.trim() ?? (nav.matches(".md-code__nav") ? "Block" : "");
    const count = (seen.get(name) ?? 0) + 1;
    seen.set(name, count);
    if (count > 1 || (!label && !nav.hasAttribute("aria-label"))) {
      nav.removeAttribute("aria-labelledby");
      nav.setAttribute("aria-label", `${name || "Navigation"} ${count}`);
    }
  }
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, pre > code, .highlight-ipynb, .jp-OutputArea-output")) wide.tabIndex = 0;
});
