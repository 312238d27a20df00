// A matrix-unit program, one instruction at a time: registers, caches, traffic, tensors.

import { ask, complaint, field, listing, make, soon, state } from "./tools.js";

const EXAMPLE = `# C = A B for matrices of 4 by 4, one thread per row; B is stored with its columns contiguous.
    segment ur3, $A
    segment ur4, $B
    segment ur5, $C
    tid   r280                      # which thread am I?
    mov   r294, 0                   # A: element 0 of my row
    mov   r295, r280
    mov   r290, 0                   # B: element 0 of my column
    mov   r291, r280
    setmm 4, 4                      # four columns, four rows
    clr   r0, 4                     # mm adds: begin with 0
    cmp.lt p1, r280, 4              # threads with a row
    @p1, ld r256, ur3:rf294:0x00, 2
    mm8.sa.sb r0, ur4:rf290:0x00, r256
    mov   r298, 0
    mov   r299, r280
    @p1, st r0, ur5:rf298:0x00, 4
    halt
`;
const TENSORS = "A = s8[4,4] iota\nB = s8[4,4] iota\nC = s32[4,4] zeros";

export const build = (section, start) => {
  const values = { program: "", tensors: TENSORS, settings: "", step: 0 };
  let now = null, sent = "";

  const wrong = complaint();
  const program = make("textarea", { rows: 14, spellcheck: false, className: "code", oninput: soon(() => edited(), 300) });
  const tensors = make("textarea", { rows: 3, spellcheck: false, className: "code", oninput: soon(() => edited(), 300) });
  const settings = make("input", { placeholder: "threads=64 l1_bytes=1024", oninput: soon(() => edited(), 300) });
  const step = make("input", { type: "number", min: 0, max: 200000, size: 7, oninput: soon(() => go(Number(step.value)), 120) });
  const button = (text, label, to) => make("button", { type: "button", textContent: text, "aria-label": label, onclick: () => go(to()) });
  const steps = make("div", { className: "steps-of", role: "group", "aria-label": "Step" },
    button("Start", "To the beginning", () => 0), button("− 1", "One back", () => values.step - 1),
    button("+ 1", "One instruction", () => values.step + 1), button("+ 10", "Ten instructions", () => values.step + 10),
    button("End", "To the end", () => 200000));
  const status = make("p", { className: "readout", role: "status" });
  const listed = make("ol", { className: "instructions", tabIndex: 0, "aria-label": "Instructions", onkeydown: (event) => {
    const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(values.step + moves[event.key]);
  } });
  const next = make("div"), registers = make("div"), caches = make("div"), counts = make("div"), arrays = make("div");
  const given = make("details", { className: "given" }), below = make("div", { hidden: true });
  section.append(
    make("h1", { textContent: "A matrix unit, one instruction at a time" }),
    make("p", { className: "lead-in", textContent: "Step through a program: what changed in registers, which cache lines came, what was moved." }),
    given, wrong, below);
  given.append(make("summary", { textContent: "Program, tensors and machine" }), field("Program", program),
      field("Tensors", tensors, "NAME = type[sizes], then iota, ones or zeros"), field("Machine", settings, "fields, as threads=64"),
      make("button", { type: "button", textContent: "Load the example", onclick: () => { Object.assign(values, { program: EXAMPLE, tensors: TENSORS, settings: "", step: 0 }); fill(); go(0); } }));
  below.append(make("div", { className: "controls" }, field("Instructions done", step), make("div", { className: "field" },
      make("span", { className: "label", textContent: "Step" }), steps)), status,
    make("div", { className: "split machine" }, make("div", { className: "wide" }, listed, next),
      make("div", { className: "side" }, make("h2", { textContent: "Registers" }), registers, make("h2", { textContent: "Tensors" }), arrays,
        make("h2", { textContent: "Caches" }), caches, make("h2", { textContent: "Counts and traffic" }), counts)));

  const fill = () => {
    program.value = values.program;
    tensors.value = values.tensors;
    settings.value = values.settings;
  };
  const save = () => state.write("matrix", { ...values, program: values.program === EXAMPLE ? "" : values.program,
    tensors: values.tensors === TENSORS ? "" : values.tensors, step: values.step || "" });

  const go = async (to) => {
    values.step = Math.max(0, Math.min(200000, Math.round(to) || 0));
    save();
    const { program: text, tensors: memory, settings: fields } = values;
    const answer = await ask("matrix", { program: text, tensors: memory, settings: fields, step: values.step });
    if (wrong.say(answer.error)) {
      given.open = true;
      return;
    }
    below.hidden = false;
    now = answer.value;
    values.step = now.step;
    if (document.activeElement !== step) step.value = now.step;
    save();
    draw();
  };

  const table = (head, body) => make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": head[0] || "values" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text, at) => make("th", { scope: "col", className: at ? "number" : "", textContent: text })))),
    make("tbody", {}, ...body)));

  const cell = (value, changed) => make("td", { className: `number ${changed ? "changed" : ""}`, textContent: value });

  const tensorOf = (tensor) => {
    const rows = tensor.values.map((row, down) => make("tr", {}, ...row.map((value, across) => cell(value, tensor.changed[down][across]))));
    const values_ = make("table", { className: "grid" }, make("tbody", {}, ...rows));
    return make("figure", {}, make("figcaption", {}, make("b", { textContent: tensor.name }), ` ${tensor.shape}`),
      make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": tensor.name }, values_));
  };

  const draw = () => {
    const took = now.step ? `; the last instruction brought the clock on by ${now.took}` : "";
    status.textContent = now.done ? now.says : `${now.step} done, ${now.cycles} cycles by the model${took}`;
    if (now.errors.length) status.textContent += ` · ${now.errors[0]}`;
    if (sent !== values.program) {
      sent = values.program;
      listed.replaceChildren(...now.listing.map((it) => make("li", { "data-pc": it.pc },
        ...it.labels.map((label) => make("b", { textContent: `${label}:` })), make("code", { textContent: it.text }))));
    }
    for (const line of listed.children) {
      const here = Number(line.dataset.pc) === now.pc;
      if (here) line.setAttribute("aria-current", "step");
      else line.removeAttribute("aria-current");
      if (here && (line.offsetTop < listed.scrollTop || line.offsetTop + line.offsetHeight > listed.scrollTop + listed.clientHeight)) listed.scrollTop = line.offsetTop - listed.clientHeight / 2;
    }
    next.replaceChildren(...(now.next.length ? [make("h2", { textContent: "The next one" }), make("ul", { className: "says" },
      ...now.next.map((line) => make("li", { textContent: line })))] : []));
    const waits = Object.entries(now.waits);
    if (waits.length) next.append(make("p", { className: "hint", textContent: `On their way: ${waits.slice(0, 12).map(([name, cycles]) => `${name} in ${cycles} cycles`).join(", ")}` }));
    const threads = Array.from({ length: now.threads }, (_, at) => `thread ${at}`);
    registers.replaceChildren(now.registers.length ? table(["register", ...threads], now.registers.map((row) => make("tr", {},
      make("td", {}, make("code", { textContent: row.name })), ...row.values.map((value, at) => cell(value, row.changed[at])))))
      : make("p", { className: "hint", textContent: "All registers are 0." }));
    arrays.replaceChildren(...now.tensors.map(tensorOf));
    caches.replaceChildren(...now.caches.map((cache) => make("figure", {}, make("figcaption", { textContent: `${cache.name}: ${cache.count} lines held${cache.gone.length ? `, ${cache.gone.length} gone` : ""}` }),
      make("div", { className: "lines" }, ...cache.lines.map((line) => make("span", { className: `${line.new ? "changed" : ""} ${line.kept ? "kept" : ""}`, textContent: line.line, title: line.kept ? "retained" : "" }))))));
    counts.replaceChildren(now.counts.length ? table(["what", "so far", "by the last one"], now.counts.map(([name, whole, part]) => make("tr", {},
      make("td", { textContent: name }), make("td", { className: "number", textContent: whole.toLocaleString("en") }),
      make("td", { className: `number ${part ? "changed" : ""}`, textContent: part ? `+${part.toLocaleString("en")}` : "" })))) : make("p", { className: "hint", textContent: "Nothing yet." }));
  };

  const edited = () => {
    Object.assign(values, { program: program.value, tensors: tensors.value, settings: settings.value });
    go(values.step);
  };

  const take = async ([file]) => {
    values.program = (await file.text()).slice(0, 200000);
    values.step = 0;
    fill();
    go(0);
  };

  const show = (given) => {
    Object.assign(values, { program: "", tensors: TENSORS, settings: "" }, given, { step: Number(given.step ?? 0) });
    values.program ||= start.program ?? EXAMPLE;
    fill();
    go(values.step);
  };
  return { title: "Matrix unit", show, take };
};
