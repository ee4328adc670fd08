(() => {
  for (const one of document.querySelectorAll(".tools, .scripted")) one.hidden = false;

  // A place that is linked to is opened.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const entry = target && target.closest("details");
    if (!entry) return;
    entry.open = true;
    entry.scrollIntoView({ block: "start" });
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", event => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) open();  // no hashchange
  });
  open();

  // One of many things that can be pointed at: its numbers are told below, and one Tab reaches all.
  const explored = (items, told, move) => {
    if (!items.length) return () => {};
    told.hidden = false;
    told.textContent = "Point at something, or tap it, for its numbers.";
    const text = one => one.dataset.says || one.title;
    let now = null;
    const tell = one => {
      if (now) now.classList.remove("now");
      now = one;
      one.classList.add("now");
      told.textContent = text(one);
      const href = one.getAttribute("href");
      if (!href) return;
      const link = document.createElement("a");
      link.href = href;
      link.textContent = "Its code and lines";
      told.append("\n", link);
    };
    items.forEach((one, place) => {
      one.setAttribute("tabindex", place ? -1 : 0);
      one.addEventListener("pointerenter", event => event.pointerType === "mouse" && tell(one));
      one.addEventListener("focus", () => {
        for (const other of items) other.setAttribute("tabindex", other === one ? 0 : -1);
        tell(one);
      });
      one.addEventListener("click", event => {
        if (event.pointerType && event.pointerType !== "mouse") event.preventDefault();
        tell(one);
      });
      one.addEventListener("keydown", event => {
        const next = move(one, event.key);
        if (!next) return;
        event.preventDefault();
        next.focus();
      });
    });
    return tell;
  };
  const beside = items => (one, key) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
    return by && items[items.indexOf(one) + by];
  };

  // The icicle: a cell without a link fills the width.
  const icicle = document.getElementById("icicle");
  if (icicle) {
    const cells = [...icicle.querySelectorAll(".cell")];
    const rows = [...icicle.children].map(row => [...row.children]);
    const at = new Map(cells.map(one => {
      const left = parseFloat(one.style.left), width = parseFloat(one.style.width);
      return [one, { left, width, depth: rows.findIndex(row => row.includes(one)) }];
    }));
    const fill = whole => {
      const { left, width } = at.get(whole);
      for (const one of cells) {
        const own = at.get(one);
        const from = Math.max(0, 100 * (own.left - left) / width);
        const to = Math.min(100, 100 * (own.left + own.width - left) / width);
        one.hidden = to - from < 0.005;
        one.style.left = `${from}%`;
        one.style.width = `${to - from}%`;
      }
    };
    const middle = one => at.get(one).left + at.get(one).width / 2;
    const within = (inner, outer) => {
      const { left, width } = at.get(outer);
      return middle(inner) > left && middle(inner) < left + width;
    };
    const move = (one, key) => {
      const shown = row => (row || []).filter(x => !x.hidden);
      const { depth } = at.get(one), row = shown(rows[depth]);
      if (key === "ArrowRight") return row[row.indexOf(one) + 1];
      if (key === "ArrowLeft") return row[row.indexOf(one) - 1];
      if (key === "ArrowDown") return shown(rows[depth + 1]).find(x => within(x, one));
      if (key === "ArrowUp") return shown(rows[depth - 1]).find(x => within(one, x));
      if (key === "Escape") { fill(cells[0]); return one; }
    };
    explored(cells, icicle.parentElement.querySelector(".told"), move);
    for (const one of cells)
      if (!one.hasAttribute("href")) one.addEventListener("click", () => fill(one));
  }

  // Kernels: what does not fit a search is hidden.
  const find = document.getElementById("find");
  if (find) {
    const entries = [...document.querySelectorAll(".entry")];
    const texts = entries.map(one => one.textContent.toLowerCase());
    find.addEventListener("input", () => {
      const wanted = find.value.trim().toLowerCase();
      entries.forEach((one, place) => { one.hidden = !texts[place].includes(wanted); });
      const count = entries.filter(one => !one.hidden).length;
      document.getElementById("found").textContent = wanted ? `${count} of ${entries.length}` : "";
    });
  }

  // Drawings: search, and size.
  for (const views of document.querySelectorAll(".views")) {
    const told = views.querySelector(".told"), panes = [...views.querySelectorAll(".scroll")];
    const shown = () => panes.find(one => one.checkVisibility());
    const tells = new Map();
    for (const pane of panes) {
      const items = [...pane.querySelectorAll("[data-node]")].map(one => {
        const title = one.querySelector("title"), item = one.closest("a") || one;
        item.dataset.says = title.textContent;
        title.remove();  // it is told below
        return item;
      });
      tells.set(pane, [items, explored(items, told, beside(items))]);
      const svg = pane.querySelector("svg");
      svg.dataset.width = svg.getAttribute("width");
      svg.dataset.high = svg.getAttribute("height");
    }
    const scale = (svg, by) => {
      svg.dataset.scale = Math.min(4, Math.max(0.05, by));
      svg.setAttribute("width", svg.dataset.width * svg.dataset.scale);
      svg.setAttribute("height", svg.dataset.high * svg.dataset.scale);
    };
    const sized = change => () => {
      const pane = shown(), svg = pane.querySelector("svg");
      scale(svg, change(Number(svg.dataset.scale || 1), (pane.clientWidth - 4) / svg.dataset.width));
    };
    views.querySelector(".less").onclick = sized(now => now / 1.25);
    views.querySelector(".more").onclick = sized(now => now * 1.25);
    views.querySelector(".fit").onclick = sized((_, fit) => fit);
    const begin = sized((now, fit) => Math.min(now, Math.max(fit, 0.55)));
    for (const one of views.querySelectorAll("[type=radio]"))
      one.addEventListener("change", () => { begin(); search(false); });
    begin();
    const input = views.querySelector("[type=search]"), hits = views.querySelector(".hits");
    let found = [], place = -1;
    const search = go => {
      const [items, tell] = tells.get(shown()), wanted = input.value.trim().toLowerCase();
      const text = one => one.dataset.says.toLowerCase();
      found = wanted ? items.filter(one => text(one).includes(wanted)) : [];
      for (const one of items) one.classList.toggle("hit", found.includes(one));
      place = go && found.length ? (place + 1) % found.length : -1;
      hits.textContent = wanted ? `${place < 0 ? "" : `${place + 1} of `}${found.length} found` : "";
      if (place < 0) return;
      tell(found[place]);
      found[place].scrollIntoView({ block: "nearest", inline: "nearest" });
    };
    input.addEventListener("input", () => search(false));
    input.addEventListener("keydown", event => { if (event.key === "Enter") search(true); });
  }
})();
