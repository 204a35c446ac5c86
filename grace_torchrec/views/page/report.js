"use strict";
document.documentElement.classList.add("scripted");

// Tables: a click on a heading sorts by the numbers behind the cells, a button shows one verdict.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        const numbers = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
        return numbers ? x - y : x.localeCompare(y);
      };
      const rows = [...body.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
      body.append(...rows);
    });
  });
}
for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => {
    const wanted = button.dataset.show;
    for (const other of button.parentElement.children) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    for (const row of document.querySelectorAll("#verdicts tbody tr")) {
      row.hidden = wanted !== "" && row.dataset.verdict !== wanted;
    }
  });
}

// What if: two sliders walk over the grid of numbers that the page holds.
const grid = document.getElementById("grid");
if (grid) {
  const { sizes, betas, cells } = JSON.parse(grid.textContent);
  const size = document.getElementById("size");
  const beta = document.getElementById("beta");
  const time = (s) => {
    if (s === 0) return "0";
    const [unit, scale] = [["s", 1], ["ms", 1e3], ["us", 1e6], ["ns", 1e9]].find(
      ([name, by]) => s * by >= 1 || name === "ns");
    const value = s * scale;
    return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
  };
  const show = () => {
    const row = size ? Number(size.value) : 0;
    const column = Number(beta.value);
    const [hbm, host, stock] = cells[row][column];
    const ours = Math.max(hbm, host);
    const longest = Math.max(ours, stock ?? 0) || 1;
    const slower = hbm > host ? "HBM" : "host memory";
    const said = document.getElementById("answer");
    said.textContent = stock === null
      ? `${time(ours)}, modelled; ${slower} is the slower one.`
      : ours === 0 ? "No rows are read."
      : `${(stock / ours).toFixed(2)} times the speed of stock, modelled; ${slower} is the slower one.`;
    for (const [name, value] of [["hbm", hbm], ["host", host], ["stock", stock]]) {
      const bar = document.querySelector(`#whatif rect.${name}`);
      if (!bar) continue;
      bar.setAttribute("width", String((1000 * value) / longest));
      document.getElementById(`${name}-time`).textContent = time(value);
    }
    if (size) {
      document.getElementById("size-text").textContent = sizes[row];
      size.setAttribute("aria-valuetext", sizes[row]);
    }
    document.getElementById("beta-text").textContent = betas[column];
    beta.setAttribute("aria-valuetext", betas[column]);
    for (const cell of document.querySelectorAll("td[data-cell]")) {
      cell.classList.toggle("here", cell.dataset.cell === `${row},${column}`);
    }
  };
  for (const slider of [size, beta]) slider?.addEventListener("input", show);
  show();
}
