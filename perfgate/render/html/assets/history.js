"use strict";
document.getElementById("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("#history tbody tr")) {
    row.hidden = !wanted.every((word) => row.dataset.q.includes(word));
  }
});
document.querySelector(".controls").hidden = false;
