// An embedding plan: move the limits and see mini-batches, drops and memory, counted on the batches themselves.

import { ask, cards, carried, choices, complaint, field, make, soon, state } from "./tools.js";

const FIRST = { chips: "1", batch: "1024", width: "16", scale: "10", target: "tpu-v5p", optimizer: "adagrad", all: "100", limits: "{}", file: "" };

export const build = (section, start) => {
  const values = { ...FIRST };
  let now = null;
  const wrong = complaint();
  const controls = {};
  const changed = soon(() => {
    for (const [name, control] of Object.entries(controls)) values[name] = control.value;
    values.limits = "{}";
    values.all = "100";
    whole.value = 100;
    load(true);
  }, 250);
  const number = (name, label, least, most) => {
    controls[name] = make("input", { type: "number", min: least, max: most, value: values[name], oninput: changed });
    return field(label, controls[name]);
  };
  const select = (name, label) => {
    controls[name] = make("select", { onchange: changed }, ...choices([values[name]], values[name]));
    return field(label, controls[name]);
  };
  const model = [number("chips", "Chips", 1, 64), number("batch", "Samples a batch", 8, 8192), number("width", "Floats a row", 1, 512),
    number("scale", "Rows, ‰ of Criteo's", 1, 100), select("optimizer", "Optimizer"), select("target", "Chip")];
  const whole = make("input", { type: "range", min: 5, max: 150, step: 1, oninput: () => { values.all = whole.value; values.limits = "{}"; load(); } });
  const wholeField = field("All limits", whole, "");
  const verdict = make("p", { className: "verdict", role: "status" });
  const figures = make("div"), heap = make("div"), stacks = make("div", { className: "stacks" }), batches = make("p", { className: "hint" });
  const below = make("div", { hidden: true }, verdict, figures, batches, make("div", { className: "controls" }, wholeField), stacks,
    make("h2", { textContent: "HBM of a chip" }), heap);
  const asked = make("div", { className: "controls" }, ...model);
  const ofFile = make("p", { className: "hint", hidden: true, textContent: "Tables, chips and batch are those of the model file." });
  section.append(make("h1", { textContent: "Limits of an embedding plan" }),
    make("p", { className: "lead-in", textContent: "Move the limits: a few batches are cut, dropped from and sized anew, counted and not estimated." }),
    asked, ofFile, wrong, below);

  const save = () => state.write("plan", Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== FIRST[name])));

  const wanted = () => {
    const own = carried(values.limits, {});
    if (!now) return own;
    const share = Number(values.all) / 100;
    return Object.fromEntries(now.stacks.map((stack) => [stack.name, own[stack.name] ?? stack.most.map((most) => Math.max(1, Math.round(most * share)))]));
  };

  const load = async (anew = false) => {
    save();
    if (anew) now = null;
    const question = { ...values, chips: Number(values.chips), batch: Number(values.batch), width: Number(values.width), scale: Number(values.scale), limits: wanted() };
    if (!values.file) delete question.file;
    const answer = await ask("plan", question);
    if (wrong.say(answer.error)) return;
    const first = now === null && values.all !== "100";
    now = answer.value;
    if (first) return load();
    below.hidden = false;
    draw();
  };

  const draw = () => {
    controls.target.replaceChildren(...choices(now.targets, values.target));
    controls.optimizer.replaceChildren(...choices(now.optimizers, values.optimizer));
    verdict.textContent = now.verdict;
    verdict.className = `verdict ${now.fits ? "good" : "bad"}`;
    const tone = now.droppedShare > 0 ? "warn" : "good";
    figures.replaceChildren(cards([...now.figures, ["dropped", now.dropped, "of the ids, were they dropped instead", tone]]));
    batches.textContent = `${now.batches} batches of ${now.batch.toLocaleString("en")} samples on ${now.sparsecores} SparseCores, cut into ${now.minibatches.map((cut) => cut ?? "no mini-batches that fit").join(", ")}`;
    wholeField.lastElementChild.textContent = `${values.all} % of what the batches ask for`;
    if (stacks.childElementCount !== now.stacks.length || stacks.dataset.names !== now.stacks.map((stack) => stack.name).join()) build_();
    now.stacks.forEach((stack, at) => fillStack(stacks.children[at], stack));
    const most = Math.max(...now.heap.map(([, size]) => size), 1);
    heap.replaceChildren(make("dl", { className: "bars" }, ...now.heap.flatMap(([name, size, text]) => {
      const bar = make("i");
      bar.style.width = `${100 * size / most}%`;
      return [make("dt", { textContent: name }), make("dd", {}, bar, make("span", { textContent: text }))];
    })));
  };

  const build_ = () => {
    stacks.dataset.names = now.stacks.map((stack) => stack.name).join();
    stacks.replaceChildren(...now.stacks.map((stack) => {
      const slider = (name, at) => {
        const range = make("input", { type: "range", min: 1, className: name, oninput: () => moved(stack.name, at, Number(range.value)) });
        return field(name === "ids" ? "Ids of a partition" : "Distinct ids", range, "");
      };
      return make("fieldset", {}, make("legend", {}), slider("ids", 0), slider("unique", 1), make("ul", { className: "says" }));
    }));
  };

  const fillStack = (box, stack) => {
    box.querySelector("legend").textContent = `${stack.label}: ${stack.tables} table${stack.tables === 1 ? "" : "s"}, ${stack.width} floats a row`;
    [["ids", stack.ids, stack.most[0]], ["unique", stack.unique, stack.most[1]]].forEach(([name, value, most]) => {
      const range = box.querySelector(`.${name}`);
      range.max = Math.max(2, Math.ceil(most * 1.5));
      if (document.activeElement !== range) range.value = value;
      range.parentNode.lastElementChild.textContent = `${value.toLocaleString("en")}; the batches ask for ${most.toLocaleString("en")}`;
    });
    box.querySelector("ul").replaceChildren(
      make("li", { textContent: `${stack.dropped} of its ids dropped; ${stack.buffers} of buffers` }),
      ...stack.programs.map((program) => make("li", { className: program.compiles ? "" : "bad", textContent: `${program.op}: ${program.compiles ? `compiles, ${program.stack} of stack a SparseCore` : program.reason}` })));
  };

  const moved = (name, at, value) => {
    const limits = wanted(), own = carried(values.limits, {});
    const pair = [...limits[name]];
    pair[at] = value;
    if (at === 0) pair[1] = Math.min(pair[1], value);
    else pair[0] = Math.max(pair[0], value);
    own[name] = pair;
    values.limits = JSON.stringify(own);
    load();
  };

  const take = async ([file], send) => {
    const answer = await send(file);
    if (wrong.say(answer.error)) return;
    show({ file: answer.value.id });
  };

  const show = (given) => {
    const own = start.file && /\.toml$/.test(start.file.name) ? start.file.id : "";
    Object.assign(values, FIRST, { file: own }, given);
    asked.hidden = Boolean(values.file);
    ofFile.hidden = !values.file;
    for (const [name, control] of Object.entries(controls)) {
      if (control.nodeName === "SELECT") control.replaceChildren(...choices([values[name]], values[name]));
      else if (!(Number(values[name]) > 0)) values[name] = FIRST[name];
      control.value = values[name];
    }
    whole.value = values.all;
    load(true);
  };
  return { title: "Embedding plan", show, take };
};
