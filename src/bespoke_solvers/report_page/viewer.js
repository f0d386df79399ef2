/* ---- the viewer of samples ---- */

const images = new Map();

function image(source) {
  if (!images.has(source)) {
    const made = new Image();
    made.src = source;
    images.set(source, made.decode().then(() => made));
  }
  return images.get(source);
}

function viewer(section, data) {
  const methods = distinct([data.start, ...data.cells.map((cell) => cell.method)]);
  const method = options(html("select", { onchange: show }), methods.map((name) => [name, name]));
  method.value = data.start;
  const nfeOf = (name) => data.cells.filter((cell) => cell.method === name).map((cell) => cell.nfe).sort((a, b) => a - b);
  let wanted = 10;  // few enough for a difference to be seen
  const slider = html("input", { type: "range", min: 0, oninput: () => { wanted = nfeOf(method.value)[slider.value]; show(); } });
  const count = html("b"), said = html("p", { class: "readout", "aria-live": "polite" });
  const controls = html("div", { class: "controls" }, labelled("Solver", method), labelled(html("span", {}, "Evaluations (NFE) ", count), slider, "wide"));
  section.append(controls);
  const panels = html("div", { class: "panels" });
  const paint = typeof data.exact === "string" ? sprites(panels, controls, data, show) : scatter(panels, data);
  panels.append(said);
  section.append(panels);
  function show() {
    const possible = nfeOf(method.value), nfe = nearest(possible, wanted);
    slider.max = Math.max(1, possible.length - 1);
    slider.disabled = possible.length === 1;
    slider.value = possible.indexOf(nfe);
    slider.setAttribute("aria-valuetext", `${nfe} evaluations`);
    count.textContent = possible.length === 1 ? `${nfe}, the only one of this solver` : `${nfe}`;
    const cell = data.cells.find((one) => one.method === method.value && one.nfe === nfe);
    said.textContent = `${cell.method} with ${cell.nfe} evaluations: ${cell.caption}`;
    paint(cell);
  }
  show();
}

/** Three canvases: a method's samples, their difference to the exact ones, the exact ones. Gives what paints them. */
function sprites(panels, controls, data, show) {
  const gain = options(html("select", { onchange: show }), [1, 4, 16, 64].map((factor) => [factor, `× ${factor}`]));
  const which = options(html("select", { onchange: show }), [["all", `all ${data.count}`], ...Array.from({ length: data.count }, (_, i) => [i, `only ${i + 1}`])]);
  gain.value = 16;
  controls.append(labelled("Samples", which), labelled("Difference, magnified", gain));
  const canvases = Array.from({ length: 3 }, () => html("canvas", { role: "img", onclick: zoom }));
  const captions = canvases.map(() => html("figcaption"));
  panels.append(...canvases.map((canvas, i) => html("figure", {}, canvas, captions[i])));
  const rows = Math.ceil(data.count / data.columns);
  function zoom(event) {
    const box = event.target.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * data.columns), row = Math.floor((event.clientY - box.top) / box.height * rows);
    which.value = which.value === "all" && row * data.columns + column < data.count ? row * data.columns + column : "all";
    show();
  }
  let latest = 0;
  return async (cell) => {
    const turn = ++latest, [found, exact] = await Promise.all([image(cell.samples), image(data.exact)]);
    if (turn !== latest) return;
    const one = which.value !== "all", w = found.width / data.columns, h = found.height / rows, gap = Math.ceil(w / 16);
    const width = one ? w : found.width + gap * (data.columns - 1), height = one ? h : found.height + gap * (rows - 1);
    const drawn = canvases.map((canvas) => {
      [canvas.width, canvas.height] = [width, height];
      canvas.classList.toggle("coarse", w < 64);
      return canvas.getContext("2d", { willReadFrequently: true });
    });
    for (let i = 0; i < data.count; i++) {
      const column = i % data.columns, row = Math.floor(i / data.columns), alone = String(i) === which.value;
      if (one && !alone) continue;
      const to = one ? [0, 0, w, h] : [column * (w + gap), row * (h + gap), w, h];
      drawn[0].drawImage(found, column * w, row * h, w, h, ...to);
      drawn[2].drawImage(exact, column * w, row * h, w, h, ...to);
    }
    const [a, b] = [drawn[0], drawn[2]].map((context) => context.getImageData(0, 0, width, height));
    const difference = drawn[1].createImageData(width, height);
    difference.data.forEach((_, i) => { difference.data[i] = i % 4 === 3 ? a.data[i] : gain.value * Math.abs(a.data[i] - b.data[i]); });
    drawn[1].putImageData(difference, 0, 0);
    const samples = one ? `sample ${Number(which.value) + 1}` : `${data.count} samples`;
    [`${cell.method}, ${cell.nfe} NFE`, `Difference × ${gain.value}`, "Exact"].forEach((text, i) => { captions[i].textContent = text; });
    canvases[0].setAttribute("aria-label", `${samples} by ${cell.method} with ${cell.nfe} evaluations: ${cell.caption}`);
    canvases[1].setAttribute("aria-label", `the difference of these to the exact, times ${gain.value}; black where there is none`);
    canvases[2].setAttribute("aria-label", `${samples}, exact, from the same noise`);
  };
}

/** Points of the plane: the exact ones, a method's, and the way between. */
function scatter(panels, data) {
  const place = html("figure", { class: "scatter" });
  panels.append(place);
  const [xs, ys] = [0, 1].map((i) => data.exact.map((point) => point[i]));
  const reach = 0.56 * Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys), 1e-6);
  const [cx, cy] = [xs, ys].map((values) => (Math.max(...values) + Math.min(...values)) / 2);
  const at = ([x, y]) => [(x - cx) / reach * 200 + 200, 200 - (y - cy) / reach * 200];
  const dot = (point, name) => svg("circle", { class: name, cx: at(point)[0], cy: at(point)[1], r: name === "exact" ? 3 : 2.2 });
  return (cell) => {
    const finite = cell.samples.map((point, i) => [data.exact[i], point]).filter(([, point]) => point.length === 2);
    const ways = finite.map((pair) => pair.map(at)).map(([a, b]) => svg("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }));
    const inside = finite.filter(([, point]) => at(point).every((value) => value >= 0 && value <= 400)).length;
    const label = `${data.exact.length} exact points and those of ${cell.method} with ${cell.nfe} evaluations: ${cell.caption}`;
    const drawn = svg("svg", { viewBox: "0 0 400 400", role: "img", "aria-label": label }, ...data.exact.map((point) => dot(point, "exact")), ...ways, ...finite.map(([, point]) => dot(point, "found")));
    drawn.style.overflow = "hidden";
    const outside = data.exact.length - inside;
    place.replaceChildren(drawn, html("figcaption", {}, "Grey: exact. Red: this solver, joined to the exact point of the same noise." + (outside ? ` ${outside} of ${data.exact.length} lie outside the frame.` : "")));
  };
}

/* ---- the page ---- */

/** A switch between parts, of which one is seen at a time; paper shows them all, each below its name. */
function oneOf(parts, label, names) {
  const select = options(html("select", { onchange: show }), names.map((name, i) => [i, name]));
  parts[0].before(html("div", { class: "controls" }, labelled(label, select)));
  function show() {
    parts.forEach((part, i) => { part.hidden = i !== Number(select.value); });
  }
  show();
}

function choice(section, data) {
  const parts = [...section.querySelectorAll(":scope > .part")];
  data.parts.forEach((part, i) => builders[part.kind]?.(parts[i], part));
  if (parts.length > 1) oneOf(parts, data.label, data.parts.map((part) => part.name));
}

/** Paper cannot be unfolded, nor anything chosen there: it has all, but for what is long, drawn for its width. */
function unfoldedOnPaper() {
  let folded = [], hidden = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open], .long)")];
    hidden = [...document.querySelectorAll(".part[hidden]")];
    folded.forEach((each) => { each.open = true; });
    hidden.forEach((each) => { each.hidden = false; });
    document.body.classList.add("paper");
    drawings.forEach((draw) => draw());
  });
  addEventListener("afterprint", () => {
    folded.forEach((each) => { each.open = false; });
    hidden.forEach((each) => { each.hidden = true; });
    document.body.classList.remove("paper");
    drawings.forEach((draw) => draw());
  });
}

const builders = { Curves: curves, Viewer: viewer, Learned: learned, Choice: choice };
JSON.parse(document.getElementById("data").textContent).forEach((data, i) => builders[data.kind]?.(document.getElementById(`section-${i}`), data));
document.querySelectorAll("table.sortable").forEach(sortable);
unfoldedOnPaper();
