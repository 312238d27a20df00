// The navigation marks the section in view; the switch goes round auto, light, dark; commands can be copied.

const links = new Map([...document.querySelectorAll("nav li a")].map((link) => [link.hash.slice(1), link]));
const sections = [...document.querySelectorAll("main > section")];

const mark = () => {
  const line = window.innerHeight * 0.25;
  const atEnd = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2 && window.scrollY > 0;
  const passed = sections.filter((section) => section.getBoundingClientRect().top <= line);
  const current = window.scrollY <= 0 ? sections[0] : atEnd ? sections.at(-1) : passed.at(-1) ?? sections[0];
  for (const [name, link] of links) {
    if (name === current?.id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
};

// A drawing that is wider than the window scrolls, also by the keyboard.
const reach = () => {
  for (const figure of document.querySelectorAll("figure:has(> svg)")) {
    if (figure.scrollWidth > figure.clientWidth) figure.tabIndex = 0;
    else figure.removeAttribute("tabindex");
  }
};
addEventListener("resize", reach);
reach();

let waiting = false;
const soon = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; mark(); });
};
addEventListener("scroll", soon, { passive: true });
addEventListener("resize", soon);
mark();

const themes = ["Auto", "Light", "Dark"];
const button = document.getElementById("theme");
const root = document.documentElement;
button.addEventListener("click", () => {
  const next = themes[(themes.indexOf(button.textContent) + 1) % themes.length];
  button.textContent = next;
  if (next === "Auto") delete root.dataset.theme;
  else root.dataset.theme = next.toLowerCase();
});

for (const block of document.querySelectorAll("pre.command")) {
  const copy = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
  const text = block.textContent;
  const said = Object.assign(document.createElement("span"), { className: "unseen" });
  said.setAttribute("role", "status");
  copy.setAttribute("aria-label", `Copy: ${text}`);
  const tell = (word) => {
    copy.textContent = said.textContent = word;
    setTimeout(() => { copy.textContent = "Copy"; said.textContent = ""; }, 1600);
  };
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell("Copied");
    } catch { // no leave to write: it is selected instead
      getSelection().selectAllChildren(block.firstElementChild);
      tell("Selected");
    }
  });
  block.append(copy, said);
}
