// Two layouts of the same elements side by side: what moves, and where each element goes.

import { Cells } from "./cells.js";
import { ask, complaint, field, listing, make, soon, state } from "./tools.js";

const FIRST = { a: "f32[14,14,256]{2,1,0:T(8,128)}", b: "f32[196,256]{1,0:T(8,128)}" };
const EXAMPLES = [
  ["a reshape", FIRST.a, FIRST.b, ""],
  ["untiled to tiled", "f32[6,10]{1,0}", "f32[6,10]{1,0:T(4,4)}", ""],
  ["a transpose", "bf16[16,256]{1,0:T(8,128)(2,1)}", "bf16[256,16]{1,0:T(8,128)(2,1)}", "1,0"],
  ["a bitcast", "f32[8,128]{1,0}", "f32[1024]{0}", ""],
  ["a sharding", "bf16[64,32] --mesh d=4,m=2 --shard d,-", "bf16[64,32] --mesh d=4,m=2 --shard -,m", ""],
];

export const build = (section) => {
  const values = { a: "", b: "", permutation: "", device: "" };
  const inputs = {};
  const input = (name, label) => {
    inputs[name] = make("textarea", { rows: 2, spellcheck: false, autocomplete: "off", oninput: soon(() => typed(), 150) });
    return field(label, inputs[name]);
  };
  const permutation = make("input", { size: 10, placeholder: "1, 0", oninput: soon(() => typed(), 150) });
  inputs.permutation = permutation;
  const wrong = complaint();
  const verdict = make("p", { className: "verdict", role: "status" });
  const costs = make("p", { className: "hint" });
  const said = make("p", { className: "readout", role: "status" });
  const sides = [0, 1].map((at) => {
    const side = { facts: make("div"), title: make("h2", { className: "mono" }) };
    const other = () => sides[1 - at];
    const tell = (cell) => {
      const there = cell?.other && cell.other[0] !== -1 ? cell.other : null;
      const found = there && other().cells.markAt(there);
      if (!cell) return other().cells.markAt(null);
      said.textContent = found ? `${cell.tip}; the other layout: ${found.panel.tips[found.cell]}` : cell.tip;
      return found;
    };
    const choose = (cell) => {
      if (cell && cell.device !== null) { // of a mesh: its shard in both
        values.device = String(cell.device);
        return load();
      }
      const found = tell(cell);
      if (found) other().cells.reveal(found);
    };
    side.cells = new Cells(at ? "Cells after: arrow keys choose one" : "Cells before: arrow keys choose one", { look: tell, choose });
    side.cells.said.hidden = true;
    side.note = make("p", { className: "hint" });
    side.box = make("div", {}, side.title, side.cells.box, side.note, side.facts);
    return side;
  });
  const moves = make("div"), both = make("div", { className: "pair", hidden: true }, ...sides.map((side) => side.box));
  const example = ([name, a, b, order]) => make("button", { type: "button", textContent: name, onclick: () => show({ a, b, permutation: order }) });

  section.append(
    make("h1", { textContent: "What moves between two layouts?" }),
    make("p", { className: "lead-in", textContent: "Elements that change their place are marked. Point at one to see where it goes." }),
    make("div", { className: "pair" }, input("a", "Before"), input("b", "After")),
    make("div", { className: "controls" }, field("Transposed by", permutation, "as numpy.transpose takes it"),
      make("div", { className: "examples", role: "group", "aria-label": "Examples" }, ...EXAMPLES.map(example))),
    wrong, verdict, costs, said, both, moves);

  const load = async () => {
    state.write("compare", values);
    const answer = await ask("compare", values);
    if (wrong.say(answer.error)) return;
    const found = answer.value;
    both.hidden = false;
    verdict.textContent = found.verdict;
    verdict.className = `verdict ${found.bitcast ? "good" : "warn"}`;
    costs.textContent = found.costs;
    said.textContent = "";
    found.sides.forEach((plain, at) => {
      sides[at].title.textContent = plain.layout;
      sides[at].cells.show(plain.scene);
      sides[at].note.textContent = plain.scene.cut;
      sides[at].facts.replaceChildren(listing(plain.facts.slice(0, 3)));
    });
    const lines = found.moves.map((move) => {
      const old = `(${move.from.join(", ")})`, now = `(${move.to.join(", ")})`;
      return make("li", { textContent: old === now ? `element ${old}: ${move.at} to ${move.goes}` : `element ${old} at ${move.at} becomes ${now} at ${move.goes}` });
    });
    const steps = found.steps.map((step) => make("li", { textContent: step }));
    moves.replaceChildren(...(lines.length ? [make("h2", { textContent: "For instance" }), make("ul", {}, ...lines)] : []),
      ...(steps.length ? [make("h2", { textContent: "The cheapest steps" }), make("ol", {}, ...steps)] : []));
  };

  const typed = () => {
    for (const name of Object.keys(inputs)) values[name] = inputs[name].value;
    values.device = "";
    load();
  };

  const show = (given) => {
    Object.assign(values, { device: "" }, values.a || given.a ? {} : FIRST, given);
    if (!values.b) values.b = values.a;
    for (const name of Object.keys(inputs)) if (inputs[name].value !== values[name]) inputs[name].value = values[name];
    load();
  };
  return { title: "Compare", show };
};
