// A program: its report's figures, its operations folded into a graph, and one operation with the texts it comes from.

import { graphOf } from "./graph.js";
import { addressOf, ask, cards, carried, choices, complaint, drop, field, listing, make, reportAddress, state } from "./tools.js";

const baseName = (path) => path.split(/[\\/]/).at(-1);

export const build = (section, start) => {
  const values = { file: "", target: "", by: "module", path: "[]", op: "" };
  let summary = null, loaded = "", level = null, rows = [];
  const sources = new Map(); // dropped with the program: name -> lines

  const wrong = complaint();
  const pick = make("input", { type: "file", multiple: true, className: "unseen", onchange: () => take([...pick.files], drop) });
  const zone = make("label", { className: "zone" }, make("b", { textContent: "Drop an HLO or StableHLO file here" }),
    make("span", { textContent: "or choose one. Source files dropped beside it are shown with its operations. Nothing leaves this machine." }), pick);
  const target = make("select", { onchange: () => { values.target = target.value; values.op = ""; load(); } });
  const by = make("select", { onchange: () => { Object.assign(values, { by: by.value, path: "[]", op: "" }); fold(); } },
    ...choices([["module", "module"], ["source", "source line"]], "module"));
  const whole = make("a", { className: "go", target: "_blank", rel: "noopener", textContent: "The whole report" });
  const head = make("div");
  const crumbs = make("nav", { className: "crumbs", "aria-label": "Folded operations" });
  const graph = make("div", { className: "graph-view", tabIndex: 0, role: "group", "aria-label": "Operations, folded" });
  const list = make("ol", { className: "rows" });
  const steps = make("div", { className: "steps-of", role: "group", "aria-label": "Walk the report" },
    make("button", { type: "button", textContent: "← previous", onclick: () => walk(-1) }),
    make("button", { type: "button", textContent: "next →", onclick: () => walk(1) }));
  const detail = make("div", { className: "detail", "aria-live": "polite" });
  const body = make("div", { hidden: true }, head,
    make("div", { className: "controls" }, field("Layouts for", target), field("Fold by", by), whole), crumbs, graph,
    make("div", { className: "split even" }, make("div", { className: "wide" }, make("div", { className: "walk" },
      make("h2", { textContent: "Most expensive here" }), steps), list), make("div", { className: "side" }, detail)));
  section.append(make("h1", { textContent: "What does a program move, and where?" }), zone, wrong, body);

  const save = () => state.write("program", { ...values, path: values.path === "[]" ? "" : values.path });

  const load = async () => {
    save();
    if (!values.file) return;
    const { file, target: chip } = values;
    const answer = await ask("program", { file, target: chip });
    body.hidden = Boolean(answer.error);
    if (wrong.say(answer.error)) return;
    summary = answer.value;
    loaded = `${file} ${chip}`;
    zone.classList.add("small");
    values.target = chip || summary.target || "";
    target.replaceChildren(...choices([...(summary.kind === "HLO" ? [["", "the dump's own"]] : []), ...summary.targets], values.target));
    whole.href = reportAddress(file, values.target);
    head.replaceChildren(make("p", { className: "lead-in" }, make("b", { textContent: summary.name }), ` ${summary.kind}, layouts ${summary.layouts}`),
      cards(summary.figures), ...changesOf(summary.changes), ...summary.notes.map((note) => make("p", { className: "hint", textContent: note })));
    await fold();
  };

  const changesOf = (changes) => (changes.length ? [make("h2", { textContent: "What pays most" }), make("ol", { className: "changes" }, ...changes.map(
    ({ saved, says, key }) => make("li", {}, make("b", { textContent: `${saved} ` }), `${says} `,
      key && make("button", { type: "button", textContent: "Show it", onclick: () => choose(key).then(() => detail.scrollIntoView({ block: "nearest" })) }))))] : []);

  const fold = async () => {
    save();
    const answer = await ask("graph", { file: values.file, target: values.target, by: values.by, path: carried(values.path, []) });
    if (wrong.say(answer.error)) return;
    level = answer.value;
    rows = level.rows;
    by.value = values.by;
    const path = level.path;
    const crumb = (name, depth) => make("button", { type: "button", textContent: name, "aria-current": depth === path.length ? "true" : null,
      onclick: () => { values.path = JSON.stringify(path.slice(0, depth)); values.op = ""; fold(); } });
    crumbs.replaceChildren(crumb(summary.name, 0), ...path.map((name, at) => crumb(name, at + 1)),
      make("small", { textContent: `${level.operations.toLocaleString("en")} operations` }));
    drawGraph();
    list.replaceChildren(...rows.map((row) => make("li", {}, make("button", { type: "button", onclick: () => choose(row.key) },
      make("b", { textContent: row.name }), make("span", { className: `badge ${row.category === "bitcast" ? "good" : ""}`, textContent: row.category }),
      make("span", { className: "cost", textContent: row.cost }), make("small", { textContent: row.reason })))));
    if (!rows.length) list.append(make("li", { className: "empty", textContent: "Nothing here moves for layout's sake." }));
    if (values.op) await choose(carried(values.op, []), false);
    else detail.replaceChildren(make("h2", { textContent: "An operation" }), make("p", { className: "hint",
      textContent: "Choose one in the graph or the list: why it moves, its line in the program's text, and your line." }));
  };

  const drawGraph = () => {
    graph.replaceChildren(graphOf(level, { chosen: values.op ? carried(values.op, []) : null, open: (node) => {
      if (!node.group) return choose(node.key);
      values.path = JSON.stringify([...level.path, node.label]);
      values.op = "";
      return fold().then(() => crumbs.lastElementChild.previousElementSibling?.focus());
    } }));
  };

  const choose = async (key, redraw = true) => {
    values.op = JSON.stringify(key);
    save();
    rows.forEach((row, at) => {
      const button = list.children[at]?.firstElementChild, here = row.key.join("\n") === key.join("\n");
      if (here) { button.setAttribute("aria-current", "true"); button.scrollIntoView({ block: "nearest" }); }
      else button?.removeAttribute("aria-current");
    });
    if (redraw) for (const box of graph.querySelectorAll(".node")) {
      const node = level.nodes.find((each) => box.title.startsWith(`${each.label}\n`) && each.key?.join("\n") === key.join("\n"));
      if (node) box.setAttribute("aria-current", "true");
      else box.removeAttribute("aria-current");
    }
    const answer = await ask("operation", { file: values.file, target: values.target, key });
    if (answer.error) return detail.replaceChildren(make("p", { className: "hint", textContent: answer.error.what }));
    const op = answer.value, row = op.row;
    const facts = [["does", op.opcode], ["result", op.shape]];
    if (op.framework) facts.push(["called", op.framework]);
    if (row) facts.push(["why", row.reason], ["costs", row.cost || "nothing by itself"]);
    if (row && row.runs > 1) facts.push(["runs", `${row.runs} times`]);
    const parts = [make("h2", { className: "mono", textContent: op.name }), listing(facts)];
    if (row?.comparable) parts.push(make("a", { className: "go", href: addressOf("compare", { a: row.from, b: row.to }), textContent: "See both layouts" }));
    if (op.kernel !== null) parts.push(make("a", { className: "go", textContent: "Walk through the kernel",
      href: addressOf("kernel", { file: values.file, target: values.target, number: op.kernel }) }));
    parts.push(excerpt(op.normal ? "The program's text, where the operation comes from" : "The program's text", op.text));
    parts.push(await sourceOf(op.source));
    const neighbours = (name, keys) => keys.length && make("p", { className: "near" }, `${name} `, ...keys.flatMap((near) =>
      [make("button", { type: "button", textContent: near[1], onclick: () => choose(near) }), " "]));
    parts.push(neighbours("takes from", op.fed_by) || null, neighbours("gives to", op.feeds) || null);
    return detail.replaceChildren(...parts.filter(Boolean));
  };

  const excerpt = (title, { first, at, lines }) => {
    const code = make("pre", { tabIndex: 0, className: "excerpt", "aria-label": title }, ...lines.map((line, number) =>
      make("span", { className: first + number === at ? "here" : "", textContent: `${String(first + number).padStart(5)}  ${line}\n` })));
    return make("figure", {}, make("figcaption", { textContent: title }), code);
  };

  const sourceOf = async (source) => {
    if (!source) return make("p", { className: "hint", textContent: "It names no line of yours." });
    const { file, line } = source;
    let lines = sources.get(baseName(file));
    const known = start.sources.find((name) => name === file || baseName(name) === baseName(file));
    if (!lines && known) lines = (await ask("source", { name: known })).value?.split("\n");
    if (!lines) return make("p", { className: "hint", textContent: `Your line: ${file}:${line}. Drop ${baseName(file)} here to read it beside this.` });
    const first = Math.max(1, line - 9);
    return excerpt(`${baseName(file)}, line ${line}${source.function ? ` in ${source.function}` : ""}`, { first, at: line, lines: lines.slice(first - 1, line + 9) });
  };

  const walk = (step) => {
    if (!rows.length) return;
    const now = values.op ? rows.findIndex((row) => row.key.join("\n") === carried(values.op, []).join("\n")) : -1;
    choose(rows[Math.max(0, Math.min(rows.length - 1, now + step))].key);
  };

  const take = async (files, send) => {
    const isSource = (file) => /\.(py|pyi|cc|cpp|h|jl|rs)$/.test(file.name);
    for (const file of files.filter(isSource)) if (file.size < 4e6) sources.set(file.name, (await file.text()).split("\n"));
    const given = files.find((file) => !isSource(file));
    if (given) {
      const answer = await send(given);
      if (wrong.say(answer.error)) return;
      Object.assign(values, { file: answer.value.id, target: "", path: "[]", op: "" });
      await load();
    } else if (values.op) await choose(carried(values.op, []));
  };

  const show = (given) => {
    Object.assign(values, { target: "", by: "module", path: "[]", op: "" }, { file: values.file || (start.file?.id ?? "") }, given);
    if (!values.path) values.path = "[]";
    if (loaded === `${values.file} ${values.target}`) fold();
    else load();
  };
  return { title: "Program", show, take };
};
