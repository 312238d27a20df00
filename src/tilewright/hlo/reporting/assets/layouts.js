// Both layouts of an opened row, drawn from the digits of their offsets: offset = base + sum weight * (e div d mod m).

const MOST_ROWS = 32, MOST_COLUMNS = 160, MOST_PLANES = 4, TALLEST = 34, LEFT = 46, LEAST = 3, LEAST_SIDE = 384;
const product = (sizes) => sizes.reduce((all, size) => all * size, 1);

const formOf = ([shape, bits, space, order, tile, base, flat]) => {
  const digits = Array.from({ length: flat.length / 4 }, (_, k) => flat.slice(4 * k, 4 * k + 4));
  return { shape, bits, space, order, tile, base, digits };
};
const offsetOf = (form, index) => {
  let offset = form.base;
  for (const [dim, weight, div, mod] of form.digits) {
    const digit = Math.floor(index[dim] / div);
    offset += weight * (mod ? digit % mod : digit);
  }
  return offset;
};
const numberOf = (shape, index) => index.reduce((number, at, dim) => number * shape[dim] + at, 0);
const indexOf = (shape, number) => {
  const index = new Array(shape.length);
  for (let dim = shape.length - 1; dim >= 0; dim -= 1) {
    index[dim] = number % shape[dim];
    number = Math.floor(number / shape[dim]);
  }
  return index;
};

// Which element of `to` an element of `from` is, and back, as numbers in row-major order; null: not known.
const matcher = (from, to, way) => {
  if (way === "" || product(from.shape) !== product(to.shape)) return null;
  if (way === "index") return { onward: (index) => indexOf(to.shape, numberOf(from.shape, index)), back: (index) => indexOf(from.shape, numberOf(to.shape, index)) };
  const dims = way.split(",").map(Number);
  return {
    onward: (index) => dims.map((dim) => index[dim]),
    back: (index) => dims.reduce((found, dim, place) => { found[dim] = index[place]; return found; }, []),
  };
};
const moves = (from, to, a, b) => from.space !== to.space || offsetOf(from, a) * from.bits !== offsetOf(to, b) * to.bits;

// -- what is drawn: planes of the two fastest dims, padded to whole tiles ---------------------------------------------

const paddedTo = (size, tile) => tile ? Math.ceil(size / tile) * tile : size;
const fitting = (wide, tile, room) => { // columns that fit beside each other: all, else whole tiles, else what there is room for
  const most = Math.max(16, Math.min(MOST_COLUMNS, Math.floor(room / LEAST)));
  return wide <= most ? wide : tile && tile <= most ? most - most % tile : most;
};
// `at`, an index, says where the window begins: which slice of the slower dims, which row and column.
const frameOf = (form, room, at) => {
  const { shape, order, tile } = form, rank = shape.length;
  const tiled = (place) => place < tile.length ? tile[tile.length - 1 - place] : 0;
  const column = order[0], row = order[1], outer = order.slice(2).find((dim) => shape[dim] > 1);
  const wide = rank ? paddedTo(shape[column], tiled(0)) : 1, tall = rank > 1 ? paddedTo(shape[row], tiled(1)) : 1;
  const folded = tall === 1 && wide > 64; // one long row is folded
  const columns = folded ? (wide < 1024 || room < 128 * LEAST ? 32 : 128) : fitting(wide, tiled(0), room);
  const rows = Math.min(folded ? Math.ceil(wide / columns) : tall, MOST_ROWS);
  const planes = outer === undefined ? 1 : Math.min(shape[outer], MOST_PLANES, Math.max(1, Math.floor(TALLEST / (rows + 2))));
  const steps = [folded ? 0 : tiled(1), folded ? 0 : tiled(0)];
  const whole = folded ? rows * columns >= wide : rows === tall && columns === wide;
  const cut = !whole || (outer !== undefined && planes < shape[outer]) || order.slice(3).some((dim) => shape[dim] > 1 && dim !== outer);
  const indexAt = (plane, r, c) => { // the index in a cell, null for padding, undefined for no cell
    const index = at.slice(), along = (folded ? r * columns + c : c) + (rank ? at[column] : 0);
    if (!rank) return index;
    if (along >= wide) return undefined;
    index[column] = along;
    if (rank > 1) index[row] = folded ? at[row] : at[row] + r;
    if (rank > 1 && index[row] >= tall) return undefined;
    if (outer !== undefined) index[outer] = at[outer] + plane;
    if (outer !== undefined && index[outer] >= shape[outer]) return undefined;
    return index.every((at, dim) => at < shape[dim]) ? index : null;
  };
  const slower = order.slice(2).filter((dim) => shape[dim] > 1);
  const turns = new Map(slower.map((dim) => [dim, dim === outer ? planes : 1])); // how far a click leads
  if (rank > 1 && tall > rows) turns.set(row, rows - (tiled(1) ? rows % tiled(1) : 0) || rows);
  if (rank && wide > columns * (folded ? rows : 1)) turns.set(column, folded ? rows * columns : columns);
  return { at, turns, column, row, outer, rows, columns, planes, steps, folded, cut, tall, wide, indexAt };
};

// -- ink --------------------------------------------------------------------------------------------------------------

const ink = (name) => `light-dark(${name})`;
const TILES = ["#cfe6ee,#1f4854", "#fbe3c0,#5a431c", "#d5ead2,#29492c", "#e6dcf3,#43355e", "#f7d8d6,#5b2f31", "#d9e0f5,#2d3b63", "#e9ecc4,#47491f", "#d3eee6,#1f4c43"].map(ink);
const COLOURS = { ink: ink("#1a2029,#e6eaf0"), soft: ink("#566272,#9aa7b7"), pad: ink("#f3f4f6,#1a2028"), hatch: ink("#b9c1cb,#66758a"), line: ink("#3b4754,#b4c0cd"), mark: ink("#b4232c,#ff8f8f") };

const resolved = (host) => { // canvas knows no light-dark(): ask a real element
  const probe = document.createElement("span");
  host.append(probe);
  const ask = (colour) => { probe.style.color = colour; return getComputedStyle(probe).color; };
  const found = { tiles: TILES.map(ask), ...Object.fromEntries(Object.entries(COLOURS).map(([name, colour]) => [name, ask(colour)])) };
  probe.remove();
  return found;
};
const hatchOf = (context, colours) => {
  const cell = document.createElement("canvas");
  cell.width = cell.height = 6;
  const pen = cell.getContext("2d");
  pen.fillStyle = colours.pad;
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = colours.hatch;
  pen.lineWidth = 0.8;
  pen.beginPath();
  pen.moveTo(-1, 7); pen.lineTo(7, -1); pen.moveTo(-4, 4); pen.lineTo(4, -4); pen.moveTo(2, 10); pen.lineTo(10, 2);
  pen.stroke();
  return context.createPattern(cell, "repeat");
};

class Side {
  constructor(form, text, width, heading) {
    this.room = width - LEFT - 4;
    Object.assign(this, { form, text, frame: frameOf(form, this.room, form.shape.map(() => 0)), left: LEFT });
    const { columns, rows, planes } = this.frame, longest = String(offsetOf(form, form.shape.map((size) => size - 1))).length;
    const labelled = longest * 6.6 + 8;
    this.cell = Math.max(LEAST, Math.min(labelled + 6, (width - this.left - 4) / columns, 54));
    this.labels = this.cell >= labelled;
    this.tall = this.labels ? 22 : Math.max(7, Math.min(this.cell * 1.4, 18));
    this.plane = rows * this.tall + 24;
    this.canvas = document.createElement("canvas");
    this.width = this.left + columns * this.cell + 4;
    this.height = planes * this.plane + 4;
    this.box = document.createElement("div");
    const title = document.createElement("p"), code = document.createElement("code");
    code.textContent = text;
    title.append(`${heading} `, code);
    this.facts = document.createElement("p");
    this.facts.className = "empty";
    const inside = document.createElement("div");
    inside.style.overflowX = "auto";
    inside.append(this.canvas);
    this.box.append(title, this.slices(), inside, this.facts);
    this.canvas.style.cssText = `width:${this.width}px;height:${this.height}px;display:block`;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${heading} ${text}`);
  }

  slices() { // a field for every dim of which only a part is in view; it turns by what is in view
    const row = document.createElement("p");
    row.className = "slices";
    for (const [dim, step] of this.frame.turns) {
      const label = document.createElement("label"), field = document.createElement("input");
      const last = Math.max(0, this.form.shape[dim] - 1);
      Object.assign(field, { type: "number", min: 0, max: last, step, value: 0 });
      field.addEventListener("input", () => {
        const from = Math.min(last, Math.max(0, Math.floor(Number(field.value) || 0)));
        this.frame = frameOf(this.form, this.room, this.frame.at.map((value, each) => each === dim ? from : value));
        this.turned();
      });
      const name = dim === this.frame.row ? "rows from" : dim === this.frame.column ? "columns from" : "slice";
      label.append(`d${dim}, ${name} `, field, ` of ${grouping(this.form.shape[dim])}`);
      row.append(label);
    }
    row.hidden = !this.frame.turns.size;
    return row;
  }

  cells(use) { // every cell that is there: plane, row, column, index or null
    const { planes, rows, columns, indexAt } = this.frame;
    for (let p = 0; p < planes; p += 1) for (let r = 0; r < rows; r += 1) for (let c = 0; c < columns; c += 1) {
      const index = indexAt(p, r, c);
      if (index !== undefined) use(p, r, c, index);
    }
  }

  place(p, r, c) { return [this.left + c * this.cell, p * this.plane + 18 + r * this.tall]; }

  at(x, y) { // the cell under a point
    const p = Math.floor(y / this.plane), r = Math.floor((y - p * this.plane - 18) / this.tall), c = Math.floor((x - this.left) / this.cell);
    const { planes, rows, columns, indexAt } = this.frame;
    if (p < 0 || p >= planes || r < 0 || r >= rows || c < 0 || c >= columns) return null;
    const index = indexAt(p, r, c);
    return index === undefined ? null : { p, r, c, index };
  }

  draw(colours, tileOf, moved, marked, lit) {
    const scale = devicePixelRatio || 1, pen = this.canvas.getContext("2d");
    this.canvas.width = Math.ceil(this.width * scale);
    this.canvas.height = Math.ceil(this.height * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const hatch = hatchOf(pen, colours), gap = this.cell > 8 ? 1 : 0.5;
    pen.font = '11px system-ui, "Segoe UI", "Liberation Sans", sans-serif';
    pen.textAlign = "center";
    this.count = { elements: 0, moved: 0, padding: 0 };
    this.cells((p, r, c, index) => {
      const [x, y] = this.place(p, r, c), wide = this.cell - gap, tall = this.tall - gap;
      this.count[index ? "elements" : "padding"] += 1;
      pen.fillStyle = index ? colours.tiles[tileOf(index) % colours.tiles.length] : hatch;
      pen.fillRect(x, y, wide, tall);
      if (!index) return;
      const moves = moved?.(index);
      if (moves) this.count.moved += 1;
      if (moves && marked) {
        const size = Math.min(7, wide * 0.85, tall * 0.62);
        pen.fillStyle = colours.mark;
        pen.beginPath();
        pen.moveTo(x + wide - size, y); pen.lineTo(x + wide, y); pen.lineTo(x + wide, y + size);
        pen.fill();
      }
      if (this.labels) {
        pen.fillStyle = colours.ink;
        pen.fillText(offsetOf(this.form, index), x + wide / 2, y + this.tall / 2 + 4);
      }
      if (lit && lit(index)) {
        pen.strokeStyle = colours.ink;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, wide - 2, tall - 2);
      }
    });
    this.edges(pen, colours);
    this.names(pen, colours);
  }

  edges(pen, colours) { // outlines of tiles
    const { planes, steps, folded, wide, tall, at, row, column, outer } = this.frame;
    const rows = folded ? this.frame.rows : Math.min(this.frame.rows, tall - (at[row] ?? 0));
    const columns = folded ? this.frame.columns : Math.min(this.frame.columns, wide - (at[column] ?? 0));
    pen.strokeStyle = colours.line;
    for (let p = 0; p < planes; p += 1) {
      if (outer !== undefined && at[outer] + p >= this.form.shape[outer]) break;
      const [x, y] = this.place(p, 0, 0), right = x + columns * this.cell, end = y + rows * this.tall;
      pen.lineWidth = 1.6;
      pen.beginPath();
      const skewed = (start, step) => (step - start % step) % step; // the first edge inside a window that begins anywhere
      const [down, along] = [at[row] ?? 0, at[column] ?? 0];
      for (let r = steps[0] ? skewed(down, steps[0]) : 0; steps[0] && r <= rows; r += steps[0]) { pen.moveTo(x, y + r * this.tall - 0.5); pen.lineTo(right, y + r * this.tall - 0.5); }
      for (let c = steps[1] ? skewed(along, steps[1]) : 0; steps[1] && c <= columns; c += steps[1]) { pen.moveTo(x + c * this.cell - 0.5, y); pen.lineTo(x + c * this.cell - 0.5, end); }
      const tile = folded && this.form.tile.length ? this.form.tile.at(-1) / columns : 0;
      for (let r = 0; tile && Number.isInteger(tile) && r <= rows && r * columns <= wide; r += tile) { pen.moveTo(x, y + r * this.tall - 0.5); pen.lineTo(right, y + r * this.tall - 0.5); }
      pen.stroke();
    }
  }

  names(pen, colours) { // of dims, rows, columns and planes
    const { planes, rows, columns, folded, column, row, outer, wide } = this.frame, { shape } = this.form;
    const digits = String((shape[column] ?? 1) - 1).length, every = Math.max(1, Math.ceil(Math.max(28, digits * 6.6 + 12) / this.cell)), step = folded ? every : [1, 2, 4, 8, 16, 32].find((n) => n >= every) ?? 64;
    const down = [1, 2, 4, 8].find((n) => n * this.tall >= 14) ?? 8, { at } = this.frame, from = { row: at[row] ?? 0, column: at[column] ?? 0 };
    pen.fillStyle = colours.soft;
    for (let p = 0; p < planes; p += 1) {
      const [x, y] = this.place(p, 0, 0);
      pen.textAlign = "right";
      for (let r = 0; r < rows; r += down) if (folded ? from.column + r * columns < shape[column] : shape.length > 1 && from.row + r < shape[row]) pen.fillText(folded ? from.column + r * columns : from.row + r, x - 5, y + r * this.tall + this.tall / 2 + 4);
      pen.textAlign = "center";
      if (!folded && shape.length) for (let c = 0; c < Math.min(columns, shape[column] - from.column); c += step) pen.fillText(from.column + c, x + (c + 0.5) * this.cell, y - 5);
      pen.textAlign = "left";
      const dims = shape.length === 0 ? "" : folded || shape.length === 1 ? `d${column}` : `d${row}`;
      if (outer === undefined || at[outer] + p < shape[outer]) pen.fillText(outer === undefined ? dims : `d${outer}=${at[outer] + p}`, 2, y - 5);
    }
  }
}

const node = (name, text, className = "") => Object.assign(document.createElement(name), { textContent: text, className });
const listed = (index) => `(${index.join(", ")})`;
const grouping = (n) => n.toLocaleString("en-US");

class Comparison {
  constructor(panel, from, to, texts, way) {
    const room = panel.clientWidth || 900, half = (room - 26) / 2, both = half >= LEAST_SIDE ? half : room; // as the style lays two beside each other
    Object.assign(this, { panel, from, to, way });
    this.match = way === "place" ? null : matcher(from, to, way);
    this.sides = [new Side(from, texts[0], both, "from"), new Side(to, texts[1], both, "to")];
    this.marked = this.worthMarks();
    const beside = node("div", "", "beside");
    beside.append(...this.sides.map((side) => side.box));
    this.said = node("p", "", "said");
    this.said.setAttribute("role", "status");
    this.usual = "point at a cell, or move over the drawing with the arrow keys: where its element is, and where it goes";
    this.said.textContent = this.usual;
    panel.replaceChildren(beside, this.said, this.legend());
    this.draw();
    this.sides.forEach((side, number) => {
      side.turned = () => { this.pointed = side.cursor = null; this.draw(); };
      side.canvas.addEventListener("mousemove", (event) => this.point(side, number, event));
      side.canvas.addEventListener("keydown", (event) => this.key(side, number, event));
      side.canvas.addEventListener("mouseleave", () => { this.said.textContent = this.usual; this.draw(); });
    });
  }

  // An element's index in both layouts, seen from one side; by place for a bitcast.
  pair(number, index) {
    if (!this.match) return null;
    return number === 0 ? [index, this.match.onward(index)] : [this.match.back(index), index];
  }

  moved(number, index) {
    if (this.way === "place") return false;
    const pair = this.pair(number, index);
    return pair ? moves(this.from, this.to, ...pair) : false;
  }

  tileOf(number, index) { // a colour per tile of the first layout where elements can be matched, else of its own
    const forms = [this.from, this.to], keyed = this.from.tile.length || !this.to.tile.length ? 0 : 1;
    const pair = this.pair(number, index);
    const form = pair ? forms[keyed] : forms[number];
    const key = this.way === "place" ? this.from.tile.length ? this.from : this.to : form;
    const size = key.tile.length ? product(key.tile.map((n) => n || 1)) : Math.max(1, key.shape[key.order[0]] ?? 1);
    const offset = this.way === "place" ? offsetOf(forms[number], index) * forms[number].bits / key.bits : offsetOf(form, pair ? pair[keyed] : index);
    return Math.floor(offset / size);
  }

  worthMarks() { // marks on nearly all elements in view would only hide the colours
    const worth = (side, number) => {
      let moved = 0, stay = 0;
      side.cells((p, r, c, index) => { if (index) this.moved(number, index) ? moved += 1 : stay += 1; });
      return moved > 0 && stay * 16 >= moved;
    };
    return this.match !== null && this.sides.some(worth);
  }

  draw(lit = [null, null]) {
    const colours = resolved(this.panel);
    this.sides.forEach((side, number) => {
      side.draw(colours, (index) => this.tileOf(number, index), this.match ? (index) => this.moved(number, index) : null, this.marked, lit[number]);
      const { elements, moved, padding } = side.count, parts = [`${grouping(elements)} elements${side.frame.cut ? " in view" : ""}`];
      if (this.match) parts.push(moved === elements ? "all of them move" : `${grouping(moved)} of them move`);
      if (padding) parts.push(`${grouping(padding)} slots of padding`);
      const whole = side.frame.cut ? ` (a part; ${grouping(product(side.form.shape))} elements in all)` : "";
      side.facts.textContent = parts.join(", ") + whole;
    });
  }

  legend() {
    const words = { place: "a bitcast: every element keeps its byte", "": "elements of the two are not matched here: parts, repetitions, or several operands" }[this.way];
    const legend = node("p", "", "empty key");
    const whose = this.match || this.way === "place" ? "a colour per tile of the first layout" : "a colour per tile";
    const marks = this.marked ? "a red corner marks an element that changes its byte" : "no marks: nearly all elements change their byte";
    const parts = [words ?? marks, whose.replace("tile", this.from.tile.length || this.to.tile.length ? "tile" : "line"), "hatched: padding", "outlined: a tile"];
    if (this.sides.some((side) => side.labels)) parts.push("number: the offset in elements");
    legend.textContent = parts.join(" · ");
    return legend;
  }

  point(side, number, event) { this.tell(side, number, side.at(event.offsetX, event.offsetY)); }

  key(side, number, event) { // the cell beside the last one
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { rows, columns, planes, indexAt } = side.frame, [p, r, c] = side.cursor ?? [0, 0, -1];
    const line = p * rows + r + step[0], along = c + step[1];
    if (line < 0 || line >= planes * rows || along < 0 || along >= columns) return;
    const place = [Math.floor(line / rows), line % rows, along], index = indexAt(...place);
    if (index === undefined) return;
    side.cursor = place;
    this.tell(side, number, { index });
  }

  tell(side, number, cell) {
    if (!cell?.index) {
      this.said.textContent = cell ? "padding" : this.usual;
      return;
    }
    const place = (form, index) => `${listed(index)} at offset ${grouping(offsetOf(form, index))}`;
    const pair = this.pair(number, cell.index);
    const key = cell.index.join();
    if (this.pointed === number + key) return;
    this.pointed = number + key;
    if (!pair) {
      this.said.textContent = place(side.form, cell.index) + (this.way === "place" ? ", in the same byte in both" : "");
      return;
    }
    this.said.textContent = `${place(this.from, pair[0])} → ${place(this.to, pair[1])}${this.moved(number, cell.index) ? "" : ", the same byte"}`;
    this.draw(pair.map((index) => { const wanted = index.join(); return (each) => each.join() === wanted; }));
  }
}

const forms = JSON.parse(document.getElementById("layouts")?.textContent ?? "{}");
let current = null;
document.addEventListener("explorer:open", ({ detail: { panel, get } }) => {
  const from = get("operand") ?? get("from"), to = get("to") ?? get("layout"), way = get("matching");
  current = null;
  if (from === undefined) return;
  if (forms[from] && forms[to]) current = new Comparison(panel, formOf(forms[from]), formOf(forms[to]), [from, to], way);
  else panel.replaceChildren(node("p", `not drawn here; see: tilewright layout compare '${from}' '${to}'`, "empty"));
});
const again = () => current?.draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
document.getElementById("theme")?.addEventListener("click", () => requestAnimationFrame(again));
