// The explorer: one view at a time, chosen by the address.

import { drop, make, state } from "./tools.js";
import * as compare from "./compare.js";
import * as kernel from "./kernel.js";
import * as layout from "./layout.js";
import * as matrix from "./matrix.js";
import * as plan from "./plan.js";
import * as program from "./program.js";

const views = { layout, compare, program, kernel, matrix, plan };
const main = document.getElementById("view");
const start = JSON.parse(document.body.dataset.start);
const built = new Map();
let shown = "";

const firstView = () => {
  const name = start.file?.name ?? "";
  if (!name) return "layout";
  if (/\.(tasm|asm|s)$/.test(name)) return "matrix";
  return /\.toml$/.test(name) ? "plan" : "program";
};

const show = () => {
  const { view, values } = state.read();
  const name = view in views ? view : firstView();
  if (!built.has(name)) {
    const section = make("section", { className: `view ${name}` });
    built.set(name, { section, ...views[name].build(section, start) });
  }
  const { section, title } = built.get(name);
  if (shown !== name) {
    main.replaceChildren(section);
    document.title = `${title} · tilewright`;
    for (const link of document.querySelectorAll("nav li a")) {
      if (link.getAttribute("href") === `#${name}`) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "center" });
      } else link.removeAttribute("aria-current");
    }
  }
  shown = name;
  built.get(name).show(values);
};

addEventListener("hashchange", show);

// A file may be dropped anywhere: it goes to the view that is shown, or to the one that reads programs.
const over = (event) => {
  if (![...event.dataTransfer.types].includes("Files")) return;
  event.preventDefault();
  document.body.classList.toggle("dropping", event.type === "dragover");
};
addEventListener("dragover", over);
addEventListener("dragleave", over);
addEventListener("drop", async (event) => {
  over(event);
  const files = [...event.dataTransfer.files];
  if (!files.length) return;
  if (!built.get(shown).take) {
    history.replaceState(null, "", "#program");
    show();
  }
  await built.get(shown).take(files, drop);
});

const themes = ["Auto", "Light", "Dark"];
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", ({ target }) => {
  const next = themes[(themes.indexOf(target.textContent) + 1) % themes.length];
  target.textContent = next;
  if (next === "Auto") delete root.dataset.theme;
  else root.dataset.theme = next.toLowerCase();
  dispatchEvent(new Event("scheme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("scheme")));

show();
