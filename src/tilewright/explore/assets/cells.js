// Cells on a canvas: the panels of a scene that Python made. Only what is in view is drawn, so that many stay fluid.
// Which cell holds which element, and where it lives, was sent with the scene; here are only pixels.

import { colour, make } from "./tools.js";

const GAP = 26, HEAD = 20, SIDE = 34, TOP = 16, LABELLED = 24, COLOURS = 8, MARGIN = 12;
const SIZES = [3, 4, 6, 8, 11, 15, 20, 26, 34, 46, 64];
const key = (values) => values.join();

export class Cells {
  // look(cell) when a cell is pointed at (null: none), choose(cell) when it is chosen.
  constructor(label, { look = () => {}, choose = () => {} } = {}) {
    Object.assign(this, { look, choose, level: 0, chosen: null, hovered: null, marked: null });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.room = make("div", { className: "room" }, this.canvas);
    this.view = make("div", { className: "cells", tabIndex: 0, role: "application", "aria-label": label,
      "aria-roledescription": "layout picture" }, this.room);
    this.said = make("p", { className: "readout", role: "status" });
    this.box = make("div", {}, this.view, this.said);
    this.view.addEventListener("scroll", () => this.soon(), { passive: true });
    this.view.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.view.addEventListener("pointerleave", () => this.point(null));
    this.view.addEventListener("click", (event) => this.pick(this.under(event)));
    this.view.addEventListener("keydown", (event) => this.key(event));
    this.view.addEventListener("focus", () => { if (!this.chosen && this.panels?.length) this.soon(); });
    new ResizeObserver(() => this.soon()).observe(this.view);
    addEventListener("scheme", () => { this.inks = null; this.soon(); });
  }

  show(scene) {
    this.scene = scene;
    this.panels = [...scene.panels, ...scene.strip];
    this.places = new Map();
    this.elements = new Map();
    this.panels.forEach((panel, at) => {
      panel.at = at;
      panel.devices = at === 0 && scene.opened !== null && scene.opened !== undefined; // what each device of a mesh holds
      panel.strip = panel.devices || at >= scene.panels.length;
      panel.longest = panel.labels.reduce((most, label) => Math.max(most, label.length), 1);
      for (let cell = 0; cell < panel.labels.length; cell += 1) {
        if (!panel.tips[cell]) continue;
        const places = this.places, where = key(panel.places[cell]);
        if (!places.has(where) || places.get(where).panel.strip) places.set(where, { panel, cell });
        if (!panel.padding[cell] && !panel.strip) this.elements.set(key(panel.indices[cell]), { panel, cell });
      }
    });
    this.chosen = this.hovered = this.marked = null;
    const [first] = this.panels, opened = first?.devices ? first.places.findIndex(([device]) => device === scene.opened) : -1;
    if (opened >= 0) this.marked = { panel: first, cell: opened };
    const widest = this.panels.reduce((most, panel) => Math.max(most, panel.devices ? 1 : panel.longest), 1) * 7 + 10;
    this.wide = Math.max(26, widest);
    const columns = Math.max(1, ...this.rows().map((row) => row.reduce((sum, panel) => sum + panel.width, 0)));
    const cells = this.panels.reduce((sum, panel) => sum + panel.width * panel.height, 0);
    const room = Math.max(200, this.view.clientWidth - 60);
    const rows = Math.max(...this.panels.map((panel) => panel.height), 1);
    const few = cells <= 1024 && columns * this.wide <= Math.max(room, 900);
    this.size = few ? 26 : SIZES.findLast((size) => size < 16 && (size * columns <= room || size * rows <= 300)) ?? 6;
    this.size = Math.max(6, this.size);
    this.inks = null;
    this.place();
  }

  rows() {
    const rows = [];
    let at = 0;
    for (const count of this.scene.rows) rows.push(this.panels.slice(at, at += count));
    for (const panel of this.panels.slice(at)) rows.push([panel]);
    return rows;
  }

  tall(panel) { return panel.devices ? Math.max(26, this.size) : this.size; } // devices are few, and chosen one by one
  across(panel) { return this.tall(panel) < LABELLED ? this.size : Math.max(this.tall(panel), panel.devices ? 38 : this.wide); }

  place() {
    let y = MARGIN, width = 0;
    for (const row of this.rows()) {
      let x = MARGIN, tall = 0;
      for (const panel of row) {
        panel.x = x + SIDE;
        panel.y = y + (panel.heading ? HEAD : 4) + TOP;
        panel.pixels = panel.width * this.across(panel);
        x = panel.x + Math.max(panel.pixels, (panel.heading.length + 2) * 6.4) + GAP;
        tall = Math.max(tall, panel.y - y + panel.height * this.tall(panel));
      }
      width = Math.max(width, x - GAP);
      y += tall + GAP;
    }
    this.wholeWidth = width + MARGIN;
    this.wholeHeight = y - GAP + MARGIN;
    this.room.style.width = `${this.wholeWidth}px`;
    this.room.style.height = `${this.wholeHeight}px`;
    this.view.style.height = `${Math.min(this.wholeHeight + 18, Math.max(260, innerHeight * 0.62))}px`;
    this.soon();
  }

  zoom(step) {
    const at = SIZES.findIndex((size) => size >= this.size), before = this.size;
    const anchor = this.chosen && this.rectangle(this.chosen);
    this.size = SIZES[Math.max(0, Math.min(SIZES.length - 1, at + step))];
    if (this.size === before) return;
    this.place();
    if (anchor) this.reveal(this.chosen);
  }

  soon() {
    if (this.waiting || !this.scene) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  // -- drawing --

  ink() {
    const named = (prefix) => Array.from({ length: COLOURS }, (_, at) => colour(`${prefix}${at}`));
    this.inks ??= {
      blocks: named("--f-"), ramp: named("--f-r"), pad: colour("--f-pad"), hatch: colour("--f-hatch"), text: colour("--f-ink"),
      soft: colour("--f-soft"), line: colour("--f-line"), ground: colour("--f-ground"), mark: colour("--f-mark"), accent: colour("--accent"),
    };
    return this.inks;
  }

  draw() {
    const { view, canvas } = this, wide = view.clientWidth, tall = view.clientHeight, ratio = devicePixelRatio || 1;
    if (!wide || !tall) return;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(tall * ratio)) {
      Object.assign(canvas, { width: Math.round(wide * ratio), height: Math.round(tall * ratio) });
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${tall}px`;
    }
    const pen = canvas.getContext("2d"), inks = this.ink();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = inks.ground;
    pen.fillRect(0, 0, wide, tall);
    pen.translate(-view.scrollLeft, -view.scrollTop);
    const window_ = { left: view.scrollLeft, top: view.scrollTop, right: view.scrollLeft + wide, bottom: view.scrollTop + tall };
    for (const panel of this.panels) this.drawPanel(pen, inks, panel, window_);
    if (this.marked) this.frame(pen, this.marked, inks.mark, 2);
    if (this.chosen) this.frame(pen, this.chosen, inks.accent, 3);
    if (this.hovered) this.frame(pen, this.hovered, inks.text, 2);
  }

  block(panel, row, column) { // which block of the level a cell is in, for its colour only
    const level = this.scene.levels[this.level - 1];
    const [top, left] = panel.first;
    return (level.rows ? Math.floor((row + top) / level.rows) : 0) + 3 * (level.columns ? Math.floor((column + left) / level.columns) : 0) + 5 * panel.at;
  }

  drawPanel(pen, inks, panel, seen) {
    const w = this.across(panel), h = this.tall(panel);
    if (panel.y - HEAD - TOP > seen.bottom || panel.y + panel.height * h < seen.top || panel.x - SIDE > seen.right) return;
    const from = Math.max(0, Math.floor((seen.top - panel.y) / h)), to = Math.min(panel.height, Math.ceil((seen.bottom - panel.y) / h));
    const left = Math.max(0, Math.floor((seen.left - panel.x) / w)), right = Math.min(panel.width, Math.ceil((seen.right - panel.x) / w));
    const edge = h > 6 ? 1 : 0, own = this.level && !panel.strip && this.scene.levels.length >= this.level;
    const block = own && this.chosen?.panel === panel ? this.blockOf(this.chosen) : null;
    const ramp = this.scene.colour === "offset" && !own ? inks.ramp : inks.blocks;
    const outside = (row, column) => block && (row < block.top || row >= block.bottom || column < block.left || column >= block.right);
    for (let row = from; row < to; row += 1) {
      for (let column = left; column < right; column += 1) {
        const at = row * panel.width + column;
        if (!panel.tips[at]) continue;
        pen.globalAlpha = outside(row, column) ? 0.35 : 1;
        pen.fillStyle = panel.padding[at] ? inks.pad : ramp[(own ? this.block(panel, row, column) : panel.colours[at]) % COLOURS];
        pen.fillRect(panel.x + column * w, panel.y + row * h, w - edge, h - edge);
      }
    }
    pen.globalAlpha = 1;
    this.hatch(pen, inks, panel, from, to, left, right);
    if (panel.moved) {
      pen.fillStyle = inks.mark;
      const corner = Math.max(3, Math.min(8, h / 3));
      for (let row = from; row < to; row += 1) for (let column = left; column < right; column += 1) {
        if (!panel.moved[row * panel.width + column]) continue;
        const x = panel.x + (column + 1) * w - edge, y = panel.y + row * h;
        pen.beginPath();
        pen.moveTo(x - corner, y);
        pen.lineTo(x, y);
        pen.lineTo(x, y + corner);
        pen.fill();
      }
    }
    if (h >= LABELLED) {
      pen.font = `${Math.min(12, h * 0.46)}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (let row = from; row < to; row += 1) for (let column = left; column < right; column += 1) {
        const at = row * panel.width + column;
        pen.fillStyle = panel.padding[at] ? inks.soft : inks.text;
        if (!outside(row, column)) pen.fillText(panel.labels[at], panel.x + (column + 0.5) * w, panel.y + (row + 0.52) * h);
      }
    }
    if (!panel.strip) this.outline(pen, inks, panel);
    this.names(pen, inks, panel, from, to, left, right);
  }

  hatch(pen, inks, panel, from, to, left, right) {
    if (!panel.padding.includes(1)) return;
    const w = this.across(panel), h = this.tall(panel), step = 6;
    pen.save();
    pen.beginPath();
    for (let row = from; row < to; row += 1) { // runs of padding in a row, each one rectangle of the clip
      for (let column = left; column < right; column += 1) {
        if (!panel.padding[row * panel.width + column]) continue;
        const first = column;
        while (column < right && panel.padding[row * panel.width + column]) column += 1;
        pen.rect(panel.x + first * w, panel.y + row * h, (column - first) * w, h);
      }
    }
    pen.clip();
    pen.beginPath();
    const x0 = panel.x + left * w, x1 = panel.x + right * w, y0 = panel.y + from * h, y1 = panel.y + to * h;
    for (let at = Math.floor((x0 - y1) / step) * step; at < x1 - y0; at += step) {
      pen.moveTo(y1 + at, y1);
      pen.lineTo(y0 + at, y0);
    }
    pen.strokeStyle = inks.hatch;
    pen.lineWidth = 0.7;
    pen.stroke();
    pen.restore();
  }

  outline(pen, inks, panel) {
    const w = this.across(panel), h = this.tall(panel);
    this.scene.levels.forEach(({ rows, columns }, at) => {
      if (this.level && at + 1 > this.level) return;
      if (Math.min((columns ?? 99) * w, (rows ?? 99) * h) < (at ? 10 : 5)) return;
      const fine = at > 0 && this.size < LABELLED; // dashes would be noise there
      pen.strokeStyle = fine ? inks.soft : inks.line;
      pen.lineWidth = fine ? 0.5 : [2, 1.2, 0.8][Math.min(at, 2)];
      pen.setLineDash(fine ? [] : [[], [4, 2.5], [1.5, 2]][Math.min(at, 2)]);
      pen.beginPath();
      const [top, left] = panel.first, begin = (first, period) => (period - first % period) % period;
      for (let row = rows ? begin(top, rows) : 0; rows && row <= panel.height; row += rows) {
        pen.moveTo(panel.x, panel.y + row * h);
        pen.lineTo(panel.x + panel.width * w, panel.y + row * h);
      }
      for (let column = columns ? begin(left, columns) : 0; columns && column <= panel.width; column += columns) {
        pen.moveTo(panel.x + column * w, panel.y);
        pen.lineTo(panel.x + column * w, panel.y + panel.height * h);
      }
      pen.stroke();
      pen.setLineDash([]);
    });
  }

  names(pen, inks, panel, from, to, left, right) {
    const w = this.across(panel), h = this.tall(panel);
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = inks.soft;
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    if (panel.heading) pen.fillText(panel.heading, panel.x, panel.y - TOP - 6);
    const every = (size, room) => [1, 2, 4, 8, 16, 32, 64, 128].find((step) => step * size >= room) ?? 256;
    pen.textAlign = "center";
    const across = every(w, 26), down = every(h, 13);
    for (let column = Math.ceil(left / across) * across; column < right && panel.columns.length; column += across) {
      pen.fillText(panel.columns[column], panel.x + (column + 0.5) * w, panel.y - 5);
    }
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let row = Math.ceil(from / down) * down; row < to; row += down) {
      pen.fillText(panel.rows[row] ?? "", panel.x - 5, panel.y + (row + 0.5) * h);
    }
    const name = [panel.row_name && `${panel.row_name} ↓`, panel.column_name && `${panel.column_name} →`].filter(Boolean).join("  ");
    pen.textAlign = "left";
    if (name && !panel.heading) pen.fillText(name, panel.x, panel.y - TOP - 4);
  }

  frame(pen, { panel, cell }, ink, width) {
    const { x, y, w, h } = this.rectangle({ panel, cell });
    pen.strokeStyle = ink;
    pen.lineWidth = width;
    pen.strokeRect(x - 0.5, y - 0.5, w, h);
  }

  rectangle({ panel, cell }) {
    const row = Math.floor(cell / panel.width), column = cell % panel.width;
    const w = this.across(panel), h = this.tall(panel);
    return { x: panel.x + column * w, y: panel.y + row * h, w, h };
  }

  // -- pointing and choosing --

  under(event) {
    const box = this.view.getBoundingClientRect();
    const x = event.clientX - box.left - this.view.clientLeft + this.view.scrollLeft;
    const y = event.clientY - box.top - this.view.clientTop + this.view.scrollTop;
    for (const panel of this.panels ?? []) {
      const row = Math.floor((y - panel.y) / this.tall(panel)), column = Math.floor((x - panel.x) / this.across(panel));
      if (row < 0 || column < 0 || row >= panel.height || column >= panel.width) continue;
      const cell = row * panel.width + column;
      return panel.tips[cell] ? { panel, cell } : null;
    }
    return null;
  }

  point(at) {
    if (at?.panel === this.hovered?.panel && at?.cell === this.hovered?.cell) return;
    this.hovered = at;
    this.look(at && this.told(at));
    this.soon();
  }

  pick(at, tell = true) {
    if (!at) return;
    this.chosen = at;
    this.said.textContent = this.tip(at);
    if (tell) this.choose(this.told(at));
    this.soon();
  }

  told({ panel, cell }) {
    return { index: panel.padding[cell] ? null : panel.indices[cell], place: panel.places[cell], tip: panel.tips[cell], other: panel.others?.[cell],
      device: panel.devices ? panel.places[cell][0] : null };
  }

  tip(at) {
    const block = this.level && !at.panel.strip ? this.blockText(at) : "";
    return `${at.panel.tips[at.cell]}${block}`;
  }

  // Marks a cell without being asked for it: by its element, else by its place.
  find(index, place) {
    return (index && this.elements.get(key(index))) ?? (place && this.places.get(key(place))) ?? null;
  }

  chooseAt(index, place) {
    const at = this.find(index, place);
    this.chosen = at;
    if (at) {
      this.said.textContent = this.tip(at);
      this.reveal(at);
    }
    this.soon();
    return Boolean(at);
  }

  markAt(index) {
    this.marked = this.find(index);
    this.soon();
    return this.marked;
  }

  reveal(at) {
    const { x, y, w, h } = this.rectangle(at), view = this.view;
    if (x < view.scrollLeft || x + w > view.scrollLeft + view.clientWidth) view.scrollLeft = x - view.clientWidth / 2;
    if (y < view.scrollTop + 20 || y + h > view.scrollTop + view.clientHeight) view.scrollTop = y - view.clientHeight / 2;
  }

  step(level) {
    this.level = Math.max(0, Math.min(this.scene?.levels.length ?? 0, level));
    if (this.chosen) this.said.textContent = this.tip(this.chosen);
    this.soon();
    return this.level;
  }

  blockOf({ panel, cell }) {
    const { rows, columns } = this.scene.levels[this.level - 1];
    const row = Math.floor(cell / panel.width), column = cell % panel.width;
    const start = (at, first, period) => Math.floor((at + first) / period) * period - first;
    const top = rows ? start(row, panel.first[0], rows) : 0, left = columns ? start(column, panel.first[1], columns) : 0;
    return { top, left, bottom: rows ? top + rows : panel.height, right: columns ? left + columns : panel.width };
  }

  blockText(at) {
    const { panel } = at, block = this.blockOf(at);
    if (block.top < 0 || block.left < 0 || block.bottom > panel.height || block.right > panel.width) return ""; // not all of it is shown
    const last = panel.places[0].length - 1;
    let least = Infinity, most = -Infinity;
    for (let row = block.top; row < Math.min(block.bottom, panel.height); row += 1) {
      for (let column = block.left; column < Math.min(block.right, panel.width); column += 1) {
        const value = panel.places[row * panel.width + column][last];
        least = Math.min(least, value);
        most = Math.max(most, value);
      }
    }
    return `, in the ${this.scene.levels[this.level - 1].name} block of ${this.scene.label}s ${least} to ${most}`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.panels?.length) return;
    const far = event.shiftKey ? 8 : 1;
    const moves = { ArrowRight: [0, far], ArrowLeft: [0, -far], ArrowDown: [far, 0], ArrowUp: [-far, 0] };
    if (event.key in moves) this.walk(...moves[event.key]);
    else if (event.key === "Home") this.pickAndReveal({ panel: this.panels[0], cell: 0 });
    else if (event.key === "End") this.pickAndReveal({ panel: this.panels.at(-1), cell: this.panels.at(-1).tips.findLastIndex(Boolean) });
    else if (event.key === "+" || event.key === "=") this.zoom(1);
    else if (event.key === "-") this.zoom(-1);
    else return;
    event.preventDefault();
  }

  walk(down, right) {
    const from = this.chosen ?? (this.marked?.panel.devices ? this.marked : null);
    if (!from) return this.pickAndReveal({ panel: this.panels[0], cell: 0 });
    const { panel, cell } = from;
    let row = Math.floor(cell / panel.width) + down, column = cell % panel.width + right, next = panel;
    if (row < 0 || row >= panel.height || column < 0 || column >= panel.width) { // on to the panel before or behind
      const neighbour = this.panels[panel.at + (row < 0 || column < 0 ? -1 : 1)];
      if (!neighbour) return undefined;
      next = neighbour;
      row = down < 0 ? next.height - 1 : down > 0 ? 0 : Math.min(row, next.height - 1);
      column = right < 0 ? next.width - 1 : right > 0 ? 0 : Math.min(column, next.width - 1);
    }
    const at = { panel: next, cell: row * next.width + column };
    return next.tips[at.cell] ? this.pickAndReveal(at) : undefined;
  }

  pickAndReveal(at) {
    this.pick(at);
    this.reveal(at);
  }
}
