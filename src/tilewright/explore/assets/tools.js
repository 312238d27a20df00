// What the views share: elements, questions to Python, the state in the address, drops, colours.

const token = new URLSearchParams(location.search).get("token") ?? "";
const authorized = { Authorization: `Bearer ${token}` };

export const make = (name, values = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(values)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && key !== "list" && key !== "form") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

const LONG = "Working. On a first use kernels are compiled, which can take a minute.";
const waiting = new Map(), working = document.getElementById("working");

// A question to Python. A newer one of the same name makes an older one's answer unwanted: that never resolves.
export const ask = async (question, values, slot = question) => {
  waiting.get(slot)?.abort();
  const control = new AbortController();
  waiting.set(slot, control);
  const busy = setTimeout(() => document.body.classList.add("busy"), 250), long = setTimeout(() => { working.textContent = LONG; }, 2500);
  try {
    const answer = await fetch(`/api/${question}`, {
      method: "POST", signal: control.signal, body: JSON.stringify(values),
      headers: { ...authorized, "Content-Type": "application/json" },
    });
    if (answer.status === 403) return { error: { what: await answer.text() } };
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") return new Promise(() => {});
    return { error: { what: "tilewright explore does not answer: is it still running?" } };
  } finally {
    clearTimeout(busy);
    clearTimeout(long);
    if (waiting.get(slot) === control) {
      waiting.delete(slot);
      if (!waiting.size) {
        document.body.classList.remove("busy");
        working.textContent = "";
      }
    }
  }
};

export const drop = async (file) => {
  try {
    const name = encodeURIComponent(file.name).slice(0, 200);
    const answer = await fetch("/drop", { method: "POST", body: file, headers: { ...authorized, "X-Name": name } });
    return await answer.json();
  } catch {
    return { error: { what: "the file could not be sent" } };
  }
};

export const reportAddress = (id, target) => `/report/${id}?${new URLSearchParams({ token, target })}`;

// The state of a view stands behind its name: #layout?text=...&at=2,3.
export const state = {
  read() {
    const [view, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
    return { view, values: Object.fromEntries(new URLSearchParams(query)) };
  },
  write(view, values) {
    const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const address = addressOf(view, Object.fromEntries(kept));
    if (address !== location.hash) history.replaceState(null, "", address);
  },
};

// What a link carries as JSON; the default where somebody has mangled it.
export const carried = (text, otherwise) => {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && Array.isArray(value) === Array.isArray(otherwise) ? value : otherwise;
  } catch {
    return otherwise;
  }
};

export const addressOf = (view, values) => {
  const query = new URLSearchParams(values).toString();
  return `#${view}${query ? `?${query}` : ""}`;
};

export const soon = (work, wait) => {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), wait);
  };
};

// Colours are named in the styles as light and dark together; a canvas needs what they are now.
const probe = document.getElementById("probe");
export const colour = (name) => {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
};

export const field = (label, control, note) => {
  control.id ||= `c${Math.random().toString(36).slice(2)}`;
  const parts = [make("label", { htmlFor: control.id, textContent: label }), control];
  if (note !== undefined) parts.push(make("small", { textContent: note }));
  return make("div", { className: "field" }, ...parts);
};

// Where a mistake is said: nothing while there is none.
export const complaint = () => {
  const box = make("div", { className: "complaint", role: "alert" });
  box.say = (error) => {
    box.replaceChildren(...(error ? [make("p", { textContent: error.what })] : []));
    if (error?.caret) box.append(make("pre", { textContent: error.caret, tabIndex: 0 }));
    return Boolean(error);
  };
  return box;
};

export const listing = (rows) => make("dl", { className: "listing" }, ...rows.flatMap(
  ([term, value]) => [make("dt", { textContent: term }), make("dd", { textContent: value })]));

export const cards = (figures) => make("div", { className: "cards" }, ...figures.map(([label, value, note, tone]) =>
  make("dl", { className: `card ${tone ?? ""}` }, make("dt", { textContent: label }),
    make("dd", { className: "value", textContent: value }), make("dd", { className: "note", textContent: note ?? "" }))));

export const choices = (values, chosen) => values.map((value) => {
  const [key, text] = Array.isArray(value) ? value : [value, value];
  return make("option", { value: key, textContent: text, selected: key === chosen });
});
