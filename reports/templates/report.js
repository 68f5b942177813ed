"use strict";
(function () {
  const table = document.querySelector("table.sortable");
  if (table) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const key = (row, i) => row.cells[i].dataset.v;
    table.querySelectorAll("thead th").forEach((th, i) => {
      const button = th.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const down = th.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        rows.sort((a, b) => {
          const x = key(a, i), y = key(b, i), nx = Number(x), ny = Number(y);
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = Number.isNaN(nx) || Number.isNaN(ny) ? x.localeCompare(y) : nx - ny;
          return down ? -order : order;
        });
        rows.forEach((row) => body.append(row));
      });
    });
    const search = document.getElementById("filter");
    const count = document.getElementById("count");
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row) => {
        row.hidden = !words.every((word) => texts.get(row).includes(word));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = shown + " of " + rows.length;
    });
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
