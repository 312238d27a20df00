// Tables sort on a click of their heading and, where asked for, filter as one types.

const compare = new Intl.Collator(undefined, { numeric: true }).compare;

const keyOf = (row, column, numeric) => {
  const cell = row.cells[column];
  if (!numeric) return cell.textContent;
  return cell.dataset.sort ? Number(cell.dataset.sort) : null; // null, a dash, sorts last both ways
};

const order = (numeric, sign) => (a, b) => {
  if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
  return sign * (numeric ? a.key - b.key : compare(a.key, b.key));
};

const sort = (table, heading) => {
  const column = heading.cellIndex;
  const numeric = heading.classList.contains("number");
  const first = numeric ? "descending" : "ascending";
  const second = numeric ? "ascending" : "descending";
  const direction = heading.ariaSort === first ? second : first;
  for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
  heading.ariaSort = direction;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: keyOf(row, column, numeric) }));
  rows.sort(order(numeric, direction === "ascending" ? 1 : -1));
  body.append(...rows.map(({ row }) => row));
};

const filter = (figure, table) => {
  const input = Object.assign(document.createElement("input"), { type: "search", placeholder: "Filter rows" });
  const shown = document.createElement("output");
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  const update = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = words.length ? `${count} of ${rows.length} rows` : `${rows.length} rows`;
  };
  const box = document.createElement("label");
  box.className = "filter";
  box.append(input, shown);
  input.setAttribute("aria-label", "Filter rows");
  input.addEventListener("input", update);
  figure.querySelector(".scroll").before(box);
  update();
};

for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", (event) => {
    const heading = event.target.closest("th");
    if (heading) sort(table, heading);
  });
  const figure = table.closest("figure[data-filter]");
  if (figure) filter(figure, table);
}
