// Tables of many rows: only rows in view are in the document; order, search, choices and the open row are in the address.

// -- numbers as people read them: the same rules as _format.py ------------------------------------------------------

const fixed = (value, digits) => { // ties go to the even digit, as in Python
  const scaled = value * 10 ** digits, low = Math.floor(scaled);
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && scaled - low === 0.5;
  return tie ? ((low % 2 ? low + 1 : low) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
};
const three = (value) => fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
const grouped = (value, digits = 0) => {
  const [whole, rest] = (digits ? fixed(Math.abs(value), digits) : String(Math.abs(value))).split(".");
  const sign = value < 0 ? "-" : "";
  return sign + whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? `.${rest}` : "");
};
const bytesText = (count) => {
  const sign = count < 0 ? "-" : "";
  let size = Math.abs(count);
  if (size < 1024) return `${sign}${Number.isInteger(size) ? size : three(size)} B`;
  let unit;
  for (unit of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    size /= 1024;
    if (size < 1023.5) break;
  }
  return `${sign}${three(size)} ${unit}`;
};
const secondsText = (seconds) => {
  const sign = seconds < 0 ? "-" : "", size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 59.95) {
    const [scale, unit] = [[1e9, "ns"], [1e6, "µs"], [1e3, "ms"], [1, "s"]]
      .find(([scale, unit]) => size * scale < 999.5 || unit === "s");
    return `${sign}${three(size * scale)} ${unit}`;
  }
  const whole = Math.round(size), minutes = Math.floor(whole / 60), two = (n) => String(n).padStart(2, "0");
  if (minutes < 60) return `${sign}${minutes} min ${two(whole % 60)} s`;
  return `${sign}${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
};
const ratioText = (ratio) => Math.abs(ratio) >= 1000 ? `${grouped(Number(fixed(ratio, 0)))}×`
  : `${ratio < 0 ? "-" : ""}${three(Math.abs(ratio))}×`;
const writers = {
  bytes: bytesText,
  count: (value) => Number.isInteger(value) ? grouped(value) : grouped(value, 2),
  seconds: secondsText,
  ratio: ratioText,
  percent: (share) => `${fixed(share * 100, 1)} %`,
  number: (value) => Number.isInteger(value) ? grouped(value) : String(Number(value.toPrecision(4))),
};
const written = (value, kind) => {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" && writers[kind] ? writers[kind](value) : String(value);
};
const units = { "": 1, b: 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };
const spans = { s: 1, ms: 1e-3, "µs": 1e-6, us: 1e-6, ns: 1e-9 };
const boundOf = (text) => { // "64 KiB", "1.5m", "4096": bytes; "20 µs": seconds; null for anything else
  const span = /^\s*([\d.]+)\s*(s|ms|µs|us|ns)\s*$/.exec(text);
  if (span) return Number(span[1]) * spans[span[2]];
  const found = /^\s*([\d.]+)\s*([kmgtb]?)(?:i?b)?\s*$/i.exec(text);
  const value = found ? Number(found[1]) * units[found[2].toLowerCase()] : NaN;
  return Number.isFinite(value) ? value : null;
};

// -- a small builder -------------------------------------------------------------------------------------------------

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const collate = new Intl.Collator(undefined, { numeric: true }).compare;
const SIDE_ROWS = 12; // rows drawn above and below those in view
const MOST_CHOICES = 60;
const MOST_PARTS = 7;
const PRINTED = 500;
const blank = (value) => value === null || value === undefined || value === "";

class Explorer {
  constructor(figure, number) {
    this.figure = figure;
    this.id = `explorer${number}`;
    const data = JSON.parse(figure.querySelector("script").textContent);
    this.fields = data.fields.map((field, place) => ({ shown: true, listed: true, ...field, place }));
    this.columns = data.columns.map((column) => Array.isArray(column) ? { plain: column } : column);
    this.count = data.count;
    this.prefix = figure.dataset.prefix ? `${figure.dataset.prefix}.` : "";
    this.byName = new Map(this.fields.map((field) => [field.name, field]));
    const named = this.byName.get(data.keys); // the field that names rows, where one does
    this.keys = named ? Array.from({ length: this.count }, (_, row) => this.value(row, named)) : data.keys;
    this.rowOf = new Map(this.keys.map((key, row) => [key, row]));
    this.facets = this.fields.filter((field) => field.facet && this.columns[field.place].values.length > 1);
    this.totals = this.fields.filter((field) => field.total);
    this.first = data.sort;
    this.orders = new Map();
    this.cursor = 0;
    this.limit = 0;
    this.build();
    this.load();
    this.update();
    this.open(this.state.row);
  }

  // -- values --

  value(row, field) {
    const column = this.columns[field.place];
    return column.plain ? column.plain[row] : column.values[column.codes ? column.codes[row] : 0];
  }

  get(row, name) { return this.byName.has(name) ? this.value(row, this.byName.get(name)) : undefined; }

  numeric(field) { return field.kind in writers; }

  order(name, direction) { // all rows in this order; what has no value comes last either way
    const key = `${name} ${direction}`;
    if (this.orders.has(key)) return this.orders.get(key);
    const field = this.byName.get(name), sign = direction === "up" ? 1 : -1;
    let keys = Array.from({ length: this.count }, (_, row) => this.value(row, field));
    if (!this.numeric(field)) {
      const ranks = new Map([...new Set(keys)].filter((text) => !blank(text)).sort(collate).map((text, at) => [text, at]));
      keys = keys.map((text) => ranks.get(text) ?? null);
    }
    const rows = keys.map((_, row) => row);
    rows.sort((a, b) => {
      if (keys[a] === null || keys[b] === null) return (keys[a] === null) - (keys[b] === null) || a - b;
      return sign * (keys[a] - keys[b]) || a - b;
    });
    this.orders.set(key, rows);
    return rows;
  }

  texts() { // what the search looks through, made when first needed
    if (!this.haystack) {
      const fields = this.fields.filter((field) => !this.numeric(field) && field.listed);
      this.haystack = this.keys.map((_, row) => fields.map((field) => this.value(row, field) ?? "").join("\n").toLowerCase());
    }
    return this.haystack;
  }

  passes(except) { // a test of rows by all filters but one facet
    const tests = [];
    for (const facet of this.facets) {
      const chosen = this.state.chosen.get(facet.name);
      if (facet === except || !chosen?.size) continue;
      const { values, codes } = this.columns[facet.place], good = values.map((value) => chosen.has(String(value ?? "")));
      tests.push((row) => good[codes[row]]);
    }
    const least = boundOf(this.state.least), weight = this.totals[0];
    if (least !== null && weight) tests.push((row) => this.value(row, weight) >= least);
    const words = this.state.q.toLowerCase().split(/\s+/).filter((word) => word && word !== "-");
    if (words.length) {
      const texts = this.texts();
      tests.push((row) => words.every((word) => word[0] === "-" ? !texts[row].includes(word.slice(1)) : texts[row].includes(word)));
    }
    return (row) => tests.every((test) => test(row));
  }

  get weight() { // what the split divides: the total that sorts, else the first
    return this.totals.find((field) => field.name === this.state.sort) ?? this.totals[0];
  }

  // -- state and address --

  load() {
    const given = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    const read = (name) => given.get(this.prefix + name);
    const [sort, direction] = (read("sort") ?? "").split(":");
    const known = this.byName.has(sort) ? sort : this.first;
    const usual = this.numeric(this.byName.get(known)) ? "down" : "up";
    this.state = {
      q: read("q") ?? "", least: read("least") ?? "", sort: known,
      direction: ["up", "down"].includes(direction) && known === sort ? direction : usual,
      chosen: new Map(this.facets.map((facet) => [facet.name, new Set(given.getAll(this.prefix + facet.name))])),
      split: read("split") ?? this.facets[0]?.name, row: this.rowOf.get(read("row")) ?? null,
    };
    if (!this.facets.some((facet) => facet.name === this.state.split)) this.state.split = this.facets[0]?.name;
    this.search.value = this.state.q;
    if (this.least) this.least.value = this.state.least;
  }

  save() {
    const kept = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    const ours = new Set([...this.byName.keys(), "q", "least", "sort", "split", "row"].map((name) => this.prefix + name));
    for (const name of [...kept.keys()]) if (ours.has(name)) kept.delete(name);
    const write = (name, value) => { if (!blank(value)) kept.append(this.prefix + name, value); };
    const { q, least, sort, direction, chosen, split, row } = this.state;
    const usual = this.numeric(this.byName.get(sort)) ? "down" : "up";
    write("q", q);
    write("least", least);
    if (sort !== this.first || direction !== usual) write("sort", `${sort}:${direction}`);
    if (split !== this.facets[0]?.name) write("split", split);
    for (const [name, values] of chosen) for (const value of values) kept.append(this.prefix + name, value);
    if (row !== null) write("row", this.keys[row]);
    const hash = kept.toString();
    if (hash || location.hash.includes("=")) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  // -- the parts --

  build() {
    this.search = make("input", { type: "search", placeholder: "Search: words, -word leaves out", spellcheck: false });
    this.search.setAttribute("aria-label", "Search all texts");
    this.search.addEventListener("input", () => { this.state.q = this.search.value; this.changed(); });
    const parts = [this.search];
    if (this.totals.length) {
      this.least = make("input", { className: "least", placeholder: `${this.totals[0].heading} at least, ${this.totals[0].kind === "seconds" ? "1 µs" : "1 MiB"}`, spellcheck: false });
      this.least.setAttribute("aria-label", `${this.totals[0].heading}: at least`);
      this.least.addEventListener("input", () => { this.state.least = this.least.value; this.changed(); });
      parts.push(this.least);
    }
    this.menus = this.facets.map((facet) => this.menu(facet));
    this.reset = make("button", { type: "button", className: "reset", textContent: "Reset" });
    this.reset.addEventListener("click", () => this.clear());
    parts.push(...this.menus.map((menu) => menu.box), this.reset);
    this.sums = make("output", { className: "sums" });
    this.split = make("div", { className: "split" });
    this.viewport = make("div", { className: "viewport", tabIndex: 0 });
    this.viewport.setAttribute("role", "region");
    const others = document.querySelectorAll(".viewport").length;
    this.viewport.setAttribute("aria-label", `Rows${others ? ` (${others + 1})` : ""}: arrows move, Enter opens one, Escape closes it`);
    this.hint = make("p", { className: "hint", textContent: "A row opens: click it, or move with the arrow keys and press Enter." });
    this.sums.setAttribute("aria-live", "polite");
    this.said = make("p", { className: "unseen" });
    this.said.setAttribute("role", "status");
    this.panel = make("aside", { className: "opened", hidden: true, tabIndex: -1 });
    this.panel.setAttribute("aria-label", "The opened row");
    this.buildTable();
    this.figure.querySelector("figure.table")?.remove();
    this.figure.append(make("div", { className: "controls" }, ...parts), this.sums, this.split, this.hint, this.viewport, this.said, this.panel);
    this.viewport.addEventListener("scroll", () => this.soon(), { passive: true });
    this.viewport.addEventListener("keydown", (event) => this.key(event));
    this.panel.addEventListener("keydown", (event) => { if (event.key === "Escape") this.close(); });
    this.body.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(() => this.soon()).observe(this.viewport);
  }

  buildTable() {
    this.cells = []; // fields that share a cell
    for (const field of this.fields.filter((field) => field.shown)) {
      if (field.below && this.cells.length) this.cells.at(-1).push(field);
      else this.cells.push([field]);
    }
    const head = make("tr", {}, make("td", { className: "mark" }));
    for (const cell of this.cells) {
      const heading = make("th", { scope: "col", className: this.numeric(cell[0]) ? "number" : "" });
      for (const field of cell) {
        const button = make("button", { type: "button", textContent: field.heading, title: field.note ?? "" });
        button.addEventListener("click", () => this.sortBy(field));
        field.button = button;
        heading.append(button);
      }
      head.append(heading);
    }
    this.body = make("tbody");
    const columns = make("colgroup", {}, make("col", { className: "mark" }), ...this.cells.map((cell) => {
      const column = make("col");
      column.style.width = `${cell[0].width}rem`;
      return column;
    }));
    const table = make("table", {}, columns, make("thead", {}, head), this.body);
    table.style.minWidth = `${this.cells.reduce((sum, cell) => sum + cell[0].width, 1.5)}rem`;
    table.setAttribute("role", "grid");
    table.setAttribute("aria-label", "Rows");
    table.setAttribute("aria-rowcount", this.count + 1);
    this.viewport.append(table);
    this.lines = Math.max(...this.cells.map((cell) => cell.length));
    this.figure.style.setProperty("--row", `${this.rowHeight}px`);
  }

  menu(facet) {
    const summary = make("summary"), list = make("div", { className: "choices" });
    const box = make("details", { className: "facet" }, summary, list);
    box.addEventListener("toggle", () => {
      if (box.open) for (const menu of this.menus) if (menu.box !== box) menu.box.open = false;
      if (box.open) this.fillMenu(menu);
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { box.open = false; summary.focus(); }
    });
    const menu = { facet, box, summary, list };
    return menu;
  }

  fillMenu({ facet, list }) {
    const passes = this.passes(facet), { values, codes } = this.columns[facet.place];
    const counts = new Array(values.length).fill(0), sums = new Array(values.length).fill(0);
    for (let row = 0; row < this.count; row += 1) {
      if (!passes(row)) continue;
      counts[codes[row]] += 1;
      if (this.totals.length) sums[codes[row]] += this.value(row, this.totals[0]) ?? 0;
    }
    const chosen = this.state.chosen.get(facet.name);
    const places = values.map((_, at) => at).sort((a, b) => sums[b] - sums[a] || counts[b] - counts[a]);
    list.replaceChildren(...places.slice(0, MOST_CHOICES).map((at) => {
      const text = String(values[at] ?? "");
      const box = make("input", { type: "checkbox", checked: chosen.has(text), value: text });
      box.addEventListener("change", () => this.choose(facet, text, box.checked));
      return make("label", {}, box, make("span", { textContent: text || "none" }), make("small", { textContent: grouped(counts[at]) }));
    }));
    if (places.length > MOST_CHOICES) {
      list.append(make("p", { className: "empty", textContent: `${grouped(places.length - MOST_CHOICES)} more: use the search` }));
    }
  }

  choose(facet, text, on) {
    const chosen = this.state.chosen.get(facet.name);
    if (on) chosen.add(text);
    else chosen.delete(text);
    this.changed();
  }

  clear() {
    Object.assign(this.state, { q: "", least: "" });
    for (const chosen of this.state.chosen.values()) chosen.clear();
    this.search.value = "";
    if (this.least) this.least.value = "";
    this.changed();
  }

  sortBy(field) {
    const usual = this.numeric(field) ? "down" : "up", other = usual === "down" ? "up" : "down";
    this.state.direction = this.state.sort === field.name && this.state.direction === usual ? other : usual;
    this.state.sort = field.name;
    this.changed();
  }

  // -- what follows a change --

  changed() {
    this.viewport.scrollTop = 0;
    this.cursor = 0;
    this.update();
    this.save();
  }

  update() {
    const { sort, direction } = this.state, passes = this.passes();
    this.rows = this.order(sort, direction).filter(passes);
    for (const field of this.fields.filter((field) => field.button)) {
      if (field.name === sort) field.button.dataset.sort = direction;
      else delete field.button.dataset.sort;
    }
    for (const cell of this.cells) {
      const sorted = cell.some((field) => field.name === sort);
      cell[0].button.parentNode.ariaSort = sorted ? (direction === "up" ? "ascending" : "descending") : "none";
    }
    if (this.least) this.least.setAttribute("aria-invalid", this.state.least !== "" && boundOf(this.state.least) === null);
    for (const { facet, summary, box } of this.menus) {
      const chosen = this.state.chosen.get(facet.name);
      summary.textContent = chosen.size === 1 ? `${facet.heading}: ${[...chosen][0] || "none"}`
        : facet.heading + (chosen.size ? ` (${chosen.size})` : "");
      box.classList.toggle("on", chosen.size > 0);
    }
    this.reset.hidden = this.rows.length === this.count && !this.state.q && !this.state.least;
    this.addUp();
    this.divide();
    this.draw();
  }

  addUp() {
    const all = this.rows.length === this.count;
    const parts = [make("b", { textContent: all ? `${grouped(this.count)} rows` : `${grouped(this.rows.length)} of ${grouped(this.count)} rows` })];
    for (const field of this.totals) {
      const sum = (rows) => rows.reduce((total, row) => total + (this.value(row, field) ?? 0), 0);
      const here = sum(this.rows);
      field.whole ??= sum(this.keys.map((_, row) => row));
      const share = all || !field.whole ? "" : ` of ${written(field.whole, field.kind)}, ${written(here / field.whole, "percent")}`;
      parts.push(make("span", {}, `${field.heading} `, make("b", { textContent: written(here, field.kind) }), share));
    }
    this.sums.replaceChildren(...parts);
  }

  divide() { // where the total of the rows in view goes
    const facet = this.byName.get(this.state.split), weight = this.weight;
    this.split.hidden = !facet || !weight;
    if (this.split.hidden) return;
    const { values, codes } = this.columns[facet.place], sums = new Map();
    for (const row of this.rows) sums.set(codes[row], (sums.get(codes[row]) ?? 0) + (this.value(row, weight) ?? 0));
    const parts = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]);
    const whole = parts.reduce((total, [, sum]) => total + sum, 0);
    const rest = parts.slice(MOST_PARTS).reduce((total, [, sum]) => total + sum, 0);
    const bar = make("div", { className: "bar" }), legend = make("div", { className: "legend" });
    const add = (label, sum, at, code) => {
      const share = `${label}: ${written(sum, weight.kind)}, ${written(sum / whole, "percent")}`;
      const piece = make("i", { className: `p${at}`, title: share }), name = make("span", { textContent: label, title: label });
      piece.style.flexGrow = sum / whole;
      const mark = make(code === null ? "span" : "button", { className: "part", title: share },
        make("i", { className: `p${at}` }), name, make("small", { textContent: written(sum, weight.kind) }));
      if (code !== null) {
        const text = String(values[code] ?? ""), toggle = () => this.choose(facet, text, !this.state.chosen.get(facet.name).has(text));
        mark.type = "button";
        mark.addEventListener("click", toggle);
        piece.addEventListener("click", toggle);
      }
      bar.append(piece);
      legend.append(mark);
    };
    parts.slice(0, MOST_PARTS).forEach(([code, sum], at) => add(String(values[code] ?? "") || "none", sum, at, code));
    if (rest) add(`${grouped(parts.length - MOST_PARTS)} more`, rest, MOST_PARTS, null);
    const by = make("select", {}, ...this.facets.map((each) => make("option", { value: each.name, textContent: `${weight.heading} by ${each.heading}`, selected: each === facet })));
    by.setAttribute("aria-label", "What the bar divides by");
    by.addEventListener("change", () => { this.state.split = by.value; this.divide(); this.save(); });
    this.split.replaceChildren(by, bar, legend);
  }

  // -- rows in view --

  get rowHeight() {
    this.height ??= (this.lines * 1.25 + 0.7) * parseFloat(getComputedStyle(document.documentElement).fontSize);
    return this.height;
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const tall = this.viewport.clientHeight || 600, height = this.rowHeight;
    let from = Math.max(0, Math.floor(this.viewport.scrollTop / height) - SIDE_ROWS);
    let to = Math.min(this.rows.length, Math.ceil((this.viewport.scrollTop + tall) / height) + SIDE_ROWS);
    if (this.limit) [from, to] = [0, Math.min(this.rows.length, this.limit)];
    const gap = (rows) => {
      const spacer = make("tr", { className: "gap" });
      spacer.style.height = `${rows * height}px`;
      return spacer;
    };
    const lines = [];
    if (from) lines.push(gap(from));
    for (let at = from; at < to; at += 1) lines.push(this.line(at));
    if (to < this.rows.length && !this.limit) lines.push(gap(this.rows.length - to));
    if (!this.rows.length) lines.push(make("tr", { className: "nothing" }, make("td", { colSpan: this.cells.length + 1, textContent: "no row passes" })));
    this.body.replaceChildren(...lines);
  }

  line(at) {
    const row = this.rows[at], line = make("tr", { id: `${this.id}-${row}` });
    line.dataset.row = row;
    line.setAttribute("aria-rowindex", at + 2);
    line.classList.toggle("cursor", at === this.cursor);
    line.classList.toggle("open", row === this.state.row);
    line.setAttribute("aria-selected", row === this.state.row);
    for (const cell of this.cells) {
      const box = make("td", { className: this.numeric(cell[0]) ? "number" : "" });
      if (cell === this.cells[0]) {
        const opens = make("i", { className: "opens", title: row === this.state.row ? "closes" : "opens" });
        opens.setAttribute("aria-hidden", "true");
        line.append(make("td", { className: "mark" }, opens));
      }
      for (const field of cell) {
        const text = written(this.value(row, field), field.kind);
        const shown = field.tail ? make("bdi", { textContent: text }) : text, title = this.numeric(field) ? "" : text;
        box.append(make(field.kind === "code" ? "code" : "span", { title, className: field.tail ? "tail" : "" }, shown));
      }
      line.append(box);
    }
    return line;
  }

  // -- keys and clicks --

  clicked(event) {
    const line = event.target.closest("tr[data-row]");
    if (!line || getSelection().toString()) return;
    const row = Number(line.dataset.row);
    this.cursor = this.rows.indexOf(row);
    if (this.state.row === row) this.close();
    else this.open(row);
  }

  key(event) {
    if (event.target !== this.viewport || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.viewport.clientHeight / this.rowHeight) - 2), last = this.rows.length - 1;
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -last, End: last };
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.open(this.rows[this.cursor] ?? null);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }

  move(step) {
    if (!this.rows.length) return;
    this.cursor = Math.min(this.rows.length - 1, Math.max(0, this.cursor + step));
    this.reveal();
    if (this.state.row !== null) this.open(this.rows[this.cursor], false);
    else {
      this.draw();
      const first = this.cells.flat().slice(0, 4).map((field) => `${field.heading} ${written(this.value(this.rows[this.cursor], field), field.kind)}`);
      this.said.textContent = `row ${this.cursor + 1} of ${this.rows.length}: ${this.keys[this.rows[this.cursor]]}, ${first.join(", ")}`;
    }
  }

  reveal() {
    const height = this.rowHeight, head = this.viewport.querySelector("thead").offsetHeight;
    const top = this.cursor * height, room = this.viewport.clientHeight - head - height;
    if (top < this.viewport.scrollTop) this.viewport.scrollTop = top;
    else if (top > this.viewport.scrollTop + room) this.viewport.scrollTop = top - room;
  }

  // -- the open row --

  open(row, focus = true) {
    if (row === null || row === undefined) return;
    for (const other of explorers) if (other !== this && other.state?.row !== null) other.close();
    this.state.row = row;
    const at = this.rows.indexOf(row);
    if (at >= 0) this.cursor = at;
    const close = make("button", { type: "button", textContent: "Close", title: "Esc" });
    close.addEventListener("click", () => this.close());
    const steps = [["Previous", -1], ["Next", 1]].map(([text, step]) => {
      const button = make("button", { type: "button", textContent: text });
      button.addEventListener("click", () => this.move(step));
      return button;
    });
    const title = make("h3", {}, make("code", { textContent: this.keys[row] }));
    const filled = this.fields.filter((field) => field.listed && !blank(this.value(row, field)));
    const leads = filled.filter((field) => field.lead), listed = filled.filter((field) => !field.lead);
    const lead = leads.map((field) => make("p", { className: "lead", textContent: written(this.value(row, field), field.kind) }));
    const items = listed.flatMap((field) => {
      const text = written(this.value(row, field), field.kind);
      const exact = field.kind === "bytes" && Math.abs(this.value(row, field)) >= 1024 ? ` (${grouped(this.value(row, field))})` : "";
      return [make("dt", { textContent: field.heading, title: field.note ?? "" }),
        make("dd", {}, make(field.kind === "code" ? "code" : "span", { textContent: text }), exact)];
    });
    const extra = make("div", { className: "extra" });
    this.panel.replaceChildren(make("header", {}, title, ...steps, close), ...lead, extra, make("dl", { className: "listing" }, ...items));
    this.panel.hidden = false;
    document.documentElement.classList.add("row-open");
    this.figure.dispatchEvent(new CustomEvent("explorer:open", { bubbles: true, detail: { panel: extra, get: (name) => this.get(row, name) } }));
    if (focus) this.figure.scrollIntoView({ block: "start", behavior: "instant" });
    this.panel.scrollTop = 0;
    this.said.textContent = `opened: ${this.keys[row]}; Tab leads into it`;
    this.reveal();
    this.draw();
    this.save();
  }

  close() {
    if (this.state.row === null) return;
    this.state.row = null;
    this.panel.hidden = true;
    document.documentElement.classList.remove("row-open");
    this.draw();
    this.save();
    this.viewport.focus({ preventScroll: true });
  }
}

const explorers = [];
const start = () => {
  document.querySelectorAll("figure.explorer").forEach((figure, number) => explorers.push(new Explorer(figure, number)));
};
// Modules that fill the panel of an opened row listen before the first row is opened.
if (document.readyState === "complete") start();
else addEventListener("DOMContentLoaded", start);

addEventListener("hashchange", () => {
  if (!location.hash.includes("=")) return;
  for (const each of explorers) {
    const { row } = each.state;
    each.load();
    each.update();
    if (each.state.row === null && row !== null) { each.state.row = row; each.close(); }
    else each.open(each.state.row, false);
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const each of explorers) {
      each.menus.forEach((menu) => { menu.box.open = false; });
      if (event.target === document.body) each.close();
    }
  }
  if (event.key !== "/" || !explorers.length || /INPUT|SELECT|TEXTAREA/.test(event.target.nodeName)) return;
  event.preventDefault();
  explorers[0].search.focus();
});
addEventListener("click", (event) => {
  for (const each of explorers) for (const menu of each.menus) if (!menu.box.contains(event.target)) menu.box.open = false;
});
addEventListener("beforeprint", () => { for (const each of explorers) { each.limit = PRINTED; each.draw(); } });
addEventListener("afterprint", () => { for (const each of explorers) { each.limit = 0; each.draw(); } });
