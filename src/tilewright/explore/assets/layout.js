// A layout as it is typed: its cells, an element's derivation, an address's element, its tile levels.

import { Cells } from "./cells.js";
import { addressOf, ask, choices, complaint, field, listing, make, soon, state } from "./tools.js";

const FIRST = "bf16[20,300]{1,0:T(8,128)(2,1)}";
const EXAMPLES = [
  ["figure of XLA's docs", "f32[3,5]{1,0:T(2,2)}"],
  ["two levels", "f32[4,8]{1,0:T(2,4)(2,1)}"],
  ["a TPU's bf16", FIRST],
  ["column-major", "f32[6,10]{0,1}"],
  ["int8 packing", "s8[70,200]{1,0:T(8,128)(4,1)}"],
  ["an NPU's lanes", "lanes f16[2,10,4,5] --chip mars3 --start 2"],
  ["over a mesh", "bf16[512,300]{1,0:T(8,128)(2,1)} --mesh d=4,m=4 --shard d,-"],
  ["CuTe, swizzled", "Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)"],
  ["a line of a dump", "ROOT %copy.5 = f32[2,9,200]{2,1,0:T(8,128)} copy(%x)"],
];

export const build = (section) => {
  const values = { text: FIRST, leaf: "", at: "", place: "", level: 0, colour: "", window: "", device: "" };
  let current = null, around = "";

  const text = make("textarea", { rows: 2, spellcheck: false, autocomplete: "off", value: values.text });
  const examples = make("div", { className: "examples", role: "group", "aria-label": "Examples" }, ...EXAMPLES.map(([name, example]) =>
    make("button", { type: "button", textContent: name, title: example, onclick: () => { text.value = example; typed(); } })));
  const wrong = complaint();
  const leaf = make("select", { onchange: () => { values.leaf = leaf.value; values.at = values.place = ""; load(); } });
  const leafField = field("Array of the tuple", leaf);
  const way = make("select", { onchange: () => { values.colour = way.value; load(); } });
  const index = make("input", { size: 12, placeholder: "2, 3", inputMode: "numeric", oninput: () => { values.at = index.value; values.place = ""; place.value = ""; derive(); } });
  const place = make("input", { size: 12, placeholder: "17", inputMode: "numeric", oninput: () => { values.place = place.value; values.at = ""; index.value = ""; derive(); } });
  const placeField = field("Address", place);
  const window_ = make("input", { size: 18, placeholder: "0:64, 0:256", oninput: soon(() => { values.window = window_.value; around = ""; load(); }, 200) });
  const windowField = field("Part shown", window_);
  const levels = make("div", { className: "steps-of", role: "group", "aria-label": "Tile levels" });
  const facts = make("div");
  const derivation = make("div", { className: "derivation", "aria-live": "polite" });
  const cells = new Cells("Cells of the layout: arrow keys choose one, + and - zoom", {
    look: (cell) => point(cell),
    choose: (cell) => {
      if (cell.device !== null) { // of a mesh: open it
        Object.assign(values, { device: String(cell.device), at: "", place: "" });
        around = "";
        fill();
        return load();
      }
      values.at = cell.index ? cell.index.join() : "";
      values.place = cell.index ? "" : cell.place.join();
      fill();
      return derive(false);
    },
  });
  const zoom = make("div", { className: "steps-of", role: "group", "aria-label": "Zoom" },
    make("button", { type: "button", textContent: "−", "aria-label": "Smaller cells", onclick: () => cells.zoom(-1) }),
    make("button", { type: "button", textContent: "+", "aria-label": "Larger cells", onclick: () => cells.zoom(1) }));
  const compared = make("a", { className: "go", textContent: "Compare it with another layout" });
  const note = make("p", { className: "hint" });
  const below = make("div", { hidden: true });

  section.append(
    make("h1", { textContent: "Where does every element live?" }),
    make("p", { className: "lead-in", textContent: "Type a layout, or paste what holds one: a line of a dump, an allocator's message, a type of JAX or MLIR, CuTe's notation. Point at a cell for its derivation; give an address for its element." }),
    field("Layout", text), examples, wrong, below);
  below.append(make("div", { className: "controls" }, leafField, field("Element", index), placeField, windowField, field("Colour", way),
      make("div", { className: "field" }, make("span", { className: "label", textContent: "Tile level" }), levels),
      make("div", { className: "field" }, make("span", { className: "label", textContent: "Zoom" }), zoom)),
    make("div", { className: "split" }, make("div", { className: "wide" }, cells.box, note),
      make("div", { className: "side" }, derivation, make("h2", { textContent: "The whole array" }), facts, compared)));

  const save = () => state.write("layout", { ...values, level: values.level || "" });

  const fill = () => {
    index.value = values.at;
    place.value = values.place;
    window_.value = values.window;
    save();
  };

  const load = async () => {
    const { text: typedText, leaf: wanted, colour, window, device } = values;
    save();
    const answer = await ask("layout", { text: typedText, leaf: wanted, colour, window, device, around });
    if (wrong.say(answer.error)) return text.setAttribute("aria-invalid", "true");
    text.removeAttribute("aria-invalid");
    current = answer.value;
    below.hidden = false;
    leafField.hidden = !current.leaves.length;
    windowField.hidden = !current.scene.cut && !values.window;
    leaf.replaceChildren(...choices(current.leaves.map((it) => [it.path, `${it.path}: ${it.layout}`]), values.leaf));
    const ways = current.axes.length > 1 && current.axes[0] !== "device" ? [current.axes[0], "line", "offset", "none"] : current.scene.levels.length ? ["tile", "line", "offset", "none"] : ["none", "line", "offset"];
    way.replaceChildren(...choices([["", "auto"], ...ways], values.colour));
    placeField.firstChild.textContent = current.axes.length > 1 ? `Address (${current.axes.join(", ")})` : "Offset";
    cells.show(current.scene);
    note.textContent = current.scene.cut;
    facts.replaceChildren(listing(current.facts));
    compared.href = addressOf("compare", { a: current.again });
    drawLevels();
    return derive();
  };

  const drawLevels = () => {
    const names = ["all", ...current.scene.levels.map((level) => level.name)];
    values.level = cells.step(Number(values.level) || 0);
    levels.replaceChildren(...names.map((name, at) => make("button", { type: "button", textContent: name, "aria-pressed": String(at === values.level),
      onclick: () => { values.level = at; drawLevels(); levels.children[at].focus(); save(); } })));
  };

  const told = (answer, reveal) => {
    if (answer.error) return derivation.replaceChildren(make("p", { className: "hint", textContent: answer.error.what }));
    const { title, lines, index: at, place: where } = answer.value;
    if (reveal && !cells.chooseAt(at, where) && at && !values.window && around !== at.join()) { // beyond the part that is shown
      around = at.join();
      values.device = "";
      return load();
    }
    const rows = lines.flatMap(([heading, line]) => [make("dt", { textContent: heading }), make("dd", { textContent: line })]);
    return derivation.replaceChildren(make("h2", { textContent: title }), make("dl", { className: "derived" }, ...rows));
  };

  const derive = async (reveal = true) => {
    save();
    const asked = { text: values.text, leaf: values.leaf };
    if (values.at) told(await ask("element", { ...asked, index: values.at }, "told"), reveal);
    else if (values.place) told(await ask("place", { ...asked, place: values.place }, "told"), reveal);
    else {
      cells.chosen = null;
      cells.soon();
      derivation.replaceChildren(make("h2", { textContent: "An element" }), make("p", { className: "hint",
        textContent: "Point at a cell or choose one with the arrow keys: how its index becomes its address stands here." }));
    }
  };

  const point = soon(async (cell) => {
    if (!cell) return derive(false);
    const asked = { text: values.text, leaf: values.leaf };
    return told(cell.index ? await ask("element", { ...asked, index: cell.index }, "told") : await ask("place", { ...asked, place: cell.place }, "told"), false);
  }, 40);

  const typed = () => {
    Object.assign(values, { text: text.value, leaf: "", at: "", place: "", level: 0, colour: "", window: "", device: "" });
    around = "";
    fill();
    load();
  };
  text.addEventListener("input", soon(typed, 120));
  addEventListener("resize", soon(() => { if (current && section.isConnected) cells.place(); }, 150));

  const show = (given) => {
    Object.assign(values, { text: values.text, leaf: "", at: "", place: "", level: 0, colour: "", window: "", device: "" }, given);
    around = "";
    if (text.value !== values.text) text.value = values.text;
    fill();
    load();
  };

  return { title: "Layout", show };
};
