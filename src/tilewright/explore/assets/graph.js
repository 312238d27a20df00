// A folded graph of operations as SVG: boxes in layers, arrows between them. Boxes are buttons.

import { make } from "./tools.js";

const WIDE = 190, TALL = 62, ACROSS = 34, DOWN = 46, NS = "http://www.w3.org/2000/svg";
const draw = (name, values, ...children) => {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

// Layers by the longest way from the beginning; arrows that would close a circle do not count.
const layered = (names, edges) => {
  const out = new Map(names.map((name) => [name, []]));
  for (const [from, to] of edges) if (out.has(from) && out.has(to)) out.get(from).push(to);
  const rank = new Map(), open = new Set(), order = [];
  const visit = (start) => { // without recursion: chains may be long
    const path = [[start, 0]];
    open.add(start);
    while (path.length) {
      const top = path.at(-1), [name] = top, next = out.get(name)[top[1]];
      if (next === undefined) {
        open.delete(name);
        rank.set(name, 0);
        order.push(name);
        path.pop();
      } else {
        top[1] += 1;
        if (!rank.has(next) && !open.has(next)) { open.add(next); path.push([next, 0]); }
      }
    }
  };
  for (const name of names) if (!rank.has(name)) visit(name);
  order.reverse();
  const at = new Map(order.map((name, place) => [name, place]));
  for (const name of order) for (const next of out.get(name)) if (at.get(next) > at.get(name)) rank.set(next, Math.max(rank.get(next), rank.get(name) + 1));
  const layers = [];
  for (const name of order) (layers[rank.get(name)] ??= []).push(name);
  return layers.filter(Boolean);
};

// Neighbours of a layer near those of the layer before.
const sorted = (layers, edges) => {
  const place = new Map();
  layers.forEach((layer, at) => {
    if (at) {
      const middle = new Map(layer.map((name) => {
        const before = edges.filter(([from, to]) => to === name && place.has(from)).map(([from]) => place.get(from));
        return [name, before.length ? before.reduce((sum, value) => sum + value, 0) / before.length : 0];
      }));
      layer.sort((one, two) => middle.get(one) - middle.get(two));
    }
    layer.forEach((name, column) => place.set(name, column - layer.length / 2));
  });
};

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export const graphOf = ({ nodes, edges }, { open, chosen }) => {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const inner = edges.filter(([from, to]) => from && to);
  const layers = layered(nodes.map((node) => node.name), inner);
  sorted(layers, inner);
  const rows = layers.flatMap((layer) => {
    const parts = [];
    for (let at = 0; at < layer.length; at += 6) parts.push(layer.slice(at, at + 6));
    return parts;
  });
  const widest = Math.max(1, ...rows.map((row) => row.length));
  const width = widest * (WIDE + ACROSS) + ACROSS, height = rows.length * (TALL + DOWN) + 20;
  const at = new Map();
  rows.forEach((row, down) => row.forEach((name, column) => at.set(name, {
    x: (width - row.length * (WIDE + ACROSS) + ACROSS) / 2 + column * (WIDE + ACROSS), y: 10 + down * (TALL + DOWN) })));

  const picture = draw("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  const most = Math.max(...edges.map(([, , count]) => count), 1);
  for (const [from, to, count] of inner) {
    const start = at.get(from), end = at.get(to), width_ = 1 + 2 * Math.sqrt(count / most);
    if (end.y <= start.y) { // back: around the right side
      const x0 = start.x + WIDE, y0 = start.y + TALL / 2, x1 = end.x + WIDE, y1 = end.y + TALL / 2, far = Math.max(x0, x1) + 30;
      picture.append(draw("path", { d: `M${x0} ${y0}C${far} ${y0} ${far} ${y1} ${x1} ${y1}`, class: "arrow back", "stroke-width": width_ }),
        draw("path", { d: `M${x1 + 7} ${y1 - 4}L${x1 + 1} ${y1}L${x1 + 7} ${y1 + 4}`, class: "arrow tip" }));
      continue;
    }
    const x0 = start.x + WIDE / 2, y0 = start.y + TALL, x1 = end.x + WIDE / 2, y1 = end.y, bend = Math.max(24, (y1 - y0) / 2);
    picture.append(draw("path", { d: `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`, class: "arrow", "stroke-width": width_ }),
      draw("path", { d: `M${x1 - 4} ${y1 - 7}L${x1} ${y1 - 1}L${x1 + 4} ${y1 - 7}`, class: "arrow tip" }));
  }
  const room = make("div", { className: "graph-room" }, picture);
  room.style.width = `${width}px`;
  room.style.height = `${height}px`;
  const heaviest = Math.max(...nodes.map((node) => node.weight), 0);
  for (const name of rows.flat()) {
    const node = byName.get(name), { x, y } = at.get(name);
    const share = make("i", { className: "share" });
    share.style.width = `${heaviest ? Math.round(100 * node.weight / heaviest) : 0}%`;
    const box = make("button", { type: "button", className: `node ${node.group ? "group" : "single"}`, title: `${node.label}\n${node.says}\n${node.cost}`,
      disabled: name === "rest", onclick: () => open(node) },
    make("b", { textContent: cut(node.label, 26) }), make("span", { textContent: cut(node.says, 34) }), make("span", { textContent: node.cost }), share);
    if (node.key && chosen && node.key.join("\n") === chosen.join("\n")) box.setAttribute("aria-current", "true");
    box.style.left = `${x}px`;
    box.style.top = `${y}px`;
    room.append(box);
  }
  return room;
};
