// The navigation marks the section in view; the switch goes round auto, light, dark.

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
