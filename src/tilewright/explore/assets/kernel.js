// A Pallas kernel: its page's sections, and a step of its grid to walk to: which blocks it has, which come and go.

import { ask, choices, complaint, drop, field, make, soon, state } from "./tools.js";

const FIRST = { file: "", target: "", number: "0", step: "0" };
const STEPPED = ["steps", "windows"]; // sections that a step changes

export const build = (section, start) => {
  const values = { ...FIRST };
  let shown = "";
  const parts = new Map();
  const wrong = complaint();
  const pick = make("input", { type: "file", className: "unseen", onchange: () => take([...pick.files], drop) });
  const zone = make("label", { className: "zone" }, make("b", { textContent: "Drop a program with a Pallas kernel here" }),
    make("span", { textContent: "A dump or StableHLO for a TPU; or choose one. Nothing leaves this machine." }), pick);
  const again = () => { values.step = "0"; load(); };
  const number = make("select", { onchange: () => { values.number = number.value; again(); } });
  const target = make("select", { onchange: () => { values.target = target.value; again(); } });
  const step = make("input", { type: "range", min: 0, oninput: soon(() => { values.step = step.value; load(); }, 60) });
  const stepField = field("Step of the grid", step, "");
  const body = make("div", { className: "kernel-parts" });
  const below = make("div", { hidden: true }, make("div", { className: "controls kept" }, field("Kernel", number), field("On", target), stepField), body);
  section.append(make("h1", { textContent: "What does a kernel bring in, and when?" }), zone, wrong, below);

  const load = async () => {
    state.write("kernel", Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== FIRST[name])));
    if (!values.file) return;
    const answer = await ask("kernel", { file: values.file, target: values.target, number: Number(values.number), step: Number(values.step) });
    below.hidden = Boolean(answer.error);
    if (wrong.say(answer.error)) return;
    const now = answer.value, which = [values.file, now.target, now.number].join();
    zone.classList.add("small");
    number.replaceChildren(...choices(now.names.map((name, at) => [String(at), name]), String(now.number)));
    target.replaceChildren(...choices(now.targets, now.target));
    step.max = Math.max(0, now.steps - 1);
    if (document.activeElement !== step) step.value = now.step;
    stepField.hidden = now.steps < 2;
    stepField.lastElementChild.textContent = `${(now.step + 1).toLocaleString("en")} of ${now.steps.toLocaleString("en")}`;
    // The markup is Python's, as on the kernel's page; what a step does not change stays as it is.
    if (which !== shown) {
      parts.clear();
      for (const [name] of now.sections) parts.set(name, make("section"));
      body.replaceChildren(...parts.values());
    }
    for (const [name, heading, markup] of now.sections) {
      if (which === shown && !STEPPED.includes(name)) continue;
      const part = parts.get(name);
      part.innerHTML = markup;
      part.prepend(make("h2", { textContent: heading }));
      for (const head of part.querySelectorAll("th button")) head.replaceWith(head.textContent); // no row needs sorting
      for (const box of part.querySelectorAll("figure, .scroll, pre")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    }
    shown = which;
  };

  const take = async ([file], send) => {
    const answer = await send(file);
    if (wrong.say(answer.error)) return;
    show({ file: answer.value.id });
  };

  const show = (given) => {
    Object.assign(values, FIRST, { file: values.file || (start.file?.id ?? "") }, given);
    step.value = values.step;
    load();
  };
  return { title: "Kernel", show, take };
};
