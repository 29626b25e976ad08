"use strict";
const PAGE = 100;
const rows = JSON.parse(document.getElementById("rows").textContent);
const body = document.getElementById("body");
const find = document.getElementById("find");
const status = document.getElementById("status");
const source = document.getElementById("source");
let column = 0, ascending = true, page = 0, kept = [];

function options(select, index) {
  for (const value of [...new Set(rows.map((row) => row[index]))].sort()) {
    const option = document.createElement("option");
    option.value = option.textContent = value;
    select.append(option);
  }
}

function compare(a, b) {
  const x = a[column], y = b[column];
  if (x === null || y === null) return (x === null) - (y === null);
  const order = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
  return (ascending ? order : -order) || a[0] - b[0];
}

function choose() {
  const words = find.value.toLowerCase().split(/\s+/);
  kept = rows.filter((row) => {
    if (status.value && row[4] !== status.value) return false;
    if (source.value && row[1] !== source.value) return false;
    const text = row.slice(1, 7).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }).sort(compare);
  page = 0;
  show();
}

function show() {
  body.replaceChildren();
  for (const row of kept.slice(page * PAGE, (page + 1) * PAGE)) {
    const line = document.createElement("tr");
    // [number, source, id, task, status, stop, rewards, reward, turns, tokens, failed]
    line.className = row[10] ? "failed" : row[4];
    for (const index of [0, 1, 2, 3, 4, 5, 6, 8, 9]) {
      const cell = document.createElement("td");
      if (index === 2) {
        const link = document.createElement("a");
        link.href = `episodes/${String(row[0]).padStart(6, "0")}.html`;
        link.textContent = row[index];
        cell.append(link);
      } else {
        cell.textContent = row[index] === null ? "-" : row[index];
      }
      line.append(cell);
    }
    body.append(line);
  }
  const pages = Math.max(1, Math.ceil(kept.length / PAGE));
  document.getElementById("where").textContent = `${kept.length} episodes, page ${page + 1} of ${pages}`;
  document.getElementById("previous").disabled = page === 0;
  document.getElementById("next").disabled = page + 1 >= pages;
}

options(status, 4);
options(source, 1);
for (const input of [find, status, source]) input.addEventListener("input", choose);
document.getElementById("previous").addEventListener("click", () => { page -= 1; show(); });
document.getElementById("next").addEventListener("click", () => { page += 1; show(); });
for (const head of document.querySelectorAll("#list th")) {
  head.addEventListener("click", () => {
    const chosen = Number(head.dataset.column);
    ascending = chosen === column ? !ascending : true;
    column = chosen;
    choose();
  });
}
choose();
