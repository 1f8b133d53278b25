document.querySelectorAll("th button").forEach(function (button) {
  button.addEventListener("click", function () {
    var th = button.parentNode, body = th.closest("table").tBodies[0], i = th.cellIndex;
    var down = th.getAttribute("aria-sort") !== "descending";
    th.parentNode.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    Array.from(body.rows).sort(function (a, b) {
      var x = a.cells[i].dataset.value, y = b.cells[i].dataset.value;
      var order = x !== undefined && y !== undefined ? x - y : a.cells[i].textContent.localeCompare(b.cells[i].textContent);
      return down ? -order : order;
    }).forEach(function (row) { body.appendChild(row); });
  });
});
