"use strict";

const HUES = 8;
const FEW = 8;  // solvers whose numbers are printed, too
const LETTER = 7;  // pixels of a label's letter, or nearly so
const MARKS = ["M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0", "M-3-3h6v6h-6z", "M0-4.5L4.5 0L0 4.5L-4.5 0z", "M0-4L4 3H-4z"];
const drawings = [];  // the functions that draw all charts anew
const STAR = "M0-7L2-2.2L7-2.2L3 1L4.5 6L0 3L-4.5 6L-3 1L-7-2.2L-2-2.2z";

/** An HTML element; text among its children is text, whatever it holds. */
function html(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function options(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => html("option", { value }, text)));
  return select;
}

function labelled(text, control, className = "") {
  return html("label", { class: className }, text, control);
}

function written(value, decimals) {
  if (decimals !== null) return value.toFixed(decimals);
  const small = value !== 0 && Math.abs(value) < 1e-4;  // as Python writes it
  return small ? value.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2") : value.toPrecision(3);
}

function nearest(values, wanted) {
  return values.reduce((best, value) => (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best));
}

const distinct = (values) => [...new Set(values)];

/* ---- sorting ---- */

/** Sort by a column: first the smallest, then the largest; rows without a value stay last, equal ones in their order. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.setAttribute("aria-sort", "none");
    head.firstElementChild.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((one, other) => compare(one.cells[column], other.cells[column], sign));
      table.tBodies[0].append(...rows);
    });
  });
}

function compare(one, other, sign) {
  const [a, b] = [one, other].map((cell) => cell.dataset.value ?? cell.textContent);
  if (a === "" || b === "") return (a === "") - (b === "");
  return sign * (one.dataset.value === undefined ? a.localeCompare(b) : a - b);
}

/* ---- charts ---- */

/** A look for each name: those to highlight alike, the others by colour, then by mark and dashes. */
function looks(names, highlight) {
  const others = names.filter((name) => !highlight.includes(name));
  return Object.fromEntries(names.map((name) => {
    const own = highlight.indexOf(name), i = others.indexOf(name), round = Math.floor(i / HUES);
    if (own >= 0) return [name, { colour: "var(--own)", width: 2.5, dash: own ? `${9 - own} 3` : "none", mark: STAR }];
    return [name, { colour: `var(--c${i % HUES})`, width: 1.5, dash: round ? `${2 + 3 * round} 3` : "none", mark: MARKS[round % MARKS.length] }];
  }));
}

function swatch(look) {
  return svg("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 34, y1: 7, y2: 7, stroke: look.colour, "stroke-width": look.width, "stroke-dasharray": look.dash }),
    svg("path", { d: look.mark, fill: look.colour, transform: "translate(17 7)" }));
}

/** Round numbers in a range, a few of them; on a logarithmic scale 1, 2, 5 of each power or the powers alone, if these are
 * enough. */
function ticks(low, high, log, count = 5) {
  if (log) {
    const powers = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) powers.push(p);
    const stride = Math.ceil(powers.length / 8), factors = powers.length > 3 ? [1] : [1, 2, 5];
    const found = powers.filter((_, i) => i % stride === 0).flatMap((p) => factors.map((f) => f * 10 ** p))
      .filter((v) => v >= low * 0.999 && v <= high * 1.001);
    if (found.length > 2) return found;
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 5, 10].find((f) => f * power >= rough) * power;
  const found = [];
  for (let i = Math.ceil(low / stride - 1e-9); i * stride <= high + 1e-9 * stride; i++) found.push(i * stride);
  return found;
}

function range(values, log, margin = 0.06) {
  const seen = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let [low, high] = [Math.min(...seen), Math.max(...seen)];
  if (!seen.length) [low, high] = log ? [0.1, 1] : [0, 1];
  if (log) return [low / (high / low) ** margin / 1.05, high * (high / low) ** margin * 1.05];
  const more = (high - low) * margin || Math.abs(high) * 0.1 || 0.5;
  return [low - more, high + more];
}

/** A drawn chart; `over(x, name)` is told to which point the pointer is nearest. */
function draw(chart, width, look, { hidden = new Set(), cursor = null, tag = null, over = () => {} } = {}) {
  const height = Math.max(200, Math.min(320, width * 0.65)), left = 46, right = 12, top = 10, bottom = 40;
  const shown = Object.entries(chart.series).filter(([name]) => !hidden.has(name));
  const lines = [...shown, ...Object.entries(chart.dotted)];
  const usable = ([, y]) => Number.isFinite(y) && (!chart.log || y > 0);
  const every = Object.values(chart.series).flat();
  const [x0, x1] = range([...every, ...Object.values(chart.dotted).flat()].map((point) => point[0]), false, 0.04);
  const [y0, y1] = range(lines.flatMap(([, points]) => points.map((point) => point[1])), chart.log);
  const scale = chart.log ? Math.log : (value) => value;
  const px = (x) => left + (x - x0) / (x1 - x0) * (width - left - right);
  const py = (y) => height - bottom - (scale(y) - scale(y0)) / (scale(y1) - scale(y0)) * (height - top - bottom);
  const path = (points) => points.map((point, i) => `${i ? "L" : "M"}${px(point[0]).toFixed(1)} ${py(point[1]).toFixed(1)}`).join("");

  const ends = shown.filter(([, points]) => points.some(usable)).map(([name, points]) => {
    const [first, last] = [points.find(usable), points.findLast(usable)];
    return `${name} ${written(first[1], chart.decimals)} at ${first[0]}` + (first === last ? "" : ` to ${written(last[1], chart.decimals)} at ${last[0]}`);
  });
  const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.title} against ${chart.x}: ${ends.join("; ")}` });
  for (const y of ticks(y0, y1, chart.log)) {
    made.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }),
      svg("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, String(Number(y.toPrecision(3)))));
  }
  const xs = distinct(every.map((point) => point[0])).sort((a, b) => a - b);
  let free = -Infinity;
  for (const x of xs.length <= 24 && xs.every(Number.isInteger) ? xs : ticks(x0, x1, false)) {
    if (px(x) < free) continue;
    made.append(svg("text", { x: px(x), y: height - bottom + 17, "text-anchor": "middle" }, String(Number(x.toPrecision(3)))));
    free = px(x) + 24;
  }
  made.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, chart.x));
  if (cursor !== null && x0 <= cursor && cursor <= x1) made.append(svg("line", { class: "cursor", x1: px(cursor), x2: px(cursor), y1: top, y2: height - bottom }));
  for (const points of Object.values(chart.dotted)) made.append(svg("path", { class: "dotted", d: path(points) }));
  for (const [name, all] of shown) {
    const points = all.filter(usable), { colour, width: stroke, dash, mark } = look[name];
    made.append(svg("path", { class: "curve", d: path(points), stroke: colour, "stroke-width": tag?.name === name ? stroke + 1.5 : stroke, "stroke-dasharray": dash }));
    for (const [x, y] of points) made.append(svg("path", { d: mark, fill: colour, transform: `translate(${px(x).toFixed(1)} ${py(y).toFixed(1)})` }));
  }
  const reach = 0.3 * (px(xs[1] ?? 1) - px(xs[0] ?? 0));
  for (const [x, y, slope] of chart.slopes) {
    const rise = (py(y + slope) - py(y)) / (px(x + 1) - px(x)) * reach;
    made.append(svg("line", { class: "slope", x1: px(x) - reach, x2: px(x) + reach, y1: py(y) - rise, y2: py(y) + rise }));
  }
  const tagged = tag && shown.find(([name]) => name === tag.name)?.[1].find((point) => point[0] === tag.x && usable(point));
  if (tagged) {
    const text = `${tag.name}: ${written(tagged[1], chart.decimals)}`, half = Math.min(width / 2, LETTER * text.length / 2);
    const middle = Math.min(Math.max(px(tag.x), half), width - half);
    made.append(svg("text", { class: "tag", x: middle, y: Math.max(top + 12, py(tagged[1]) - 10), "text-anchor": "middle" }, text));
  }
  const point = (event) => {
    const box = made.getBoundingClientRect(), zoom = width / box.width;
    const [mx, my] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    let best = null;
    for (const [name, points] of shown) {
      for (const [x, y] of points.filter(usable)) {
        const distance = Math.abs(px(x) - mx) * 3 + Math.abs(py(y) - my);
        if (!best || distance < best.distance) best = { distance, x, name };
      }
    }
    if (best && (best.x !== cursor || best.name !== tag?.name || tag?.x !== best.x)) over(best.x, best.name);
  };
  made.addEventListener("pointermove", point);
  made.addEventListener("pointerdown", point);
  return made;
}

/** Where charts are drawn, as wide as the page leaves them; gives the function that draws them anew. */
function canvasOf(charts, place, drawn) {
  const boxes = charts.map((chart) => html("div", { class: "chart" }));
  place.replaceChildren(...charts.map((chart, i) => html("div", {}, html("h3", {}, chart.title), boxes[i])));
  const redraw = () => boxes.forEach((box, i) => box.replaceChildren(drawn(charts[i], Math.round(box.clientWidth) || 340, redraw)));
  new ResizeObserver(redraw).observe(place);
  drawings.push(redraw);
  redraw();
  return redraw;
}

function curves(section, data) {
  const found = distinct(data.charts.flatMap((chart) => Object.keys(chart.series)));
  const names = [...found.filter((name) => data.highlight.includes(name)), ...found.filter((name) => !data.highlight.includes(name))];
  const xs = distinct(data.charts.flatMap((chart) => Object.values(chart.series).flat().map((point) => point[0]))).sort((a, b) => a - b);
  if (!xs.length) return;
  const look = looks(names, data.highlight), hidden = new Set();
  const own = data.highlight.flatMap((name) => data.charts[0].series[name] ?? []).map((point) => point[0]);
  let cursor = own.length ? Math.max(...own) : xs.at(-1), tag = null;
  const slider = html("input", { type: "range", min: 0, max: xs.length - 1, oninput: () => { cursor = xs[slider.value]; tag = null; redraw(); } });
  const at = html("b"), head = html("th", { scope: "col" });
  const place = html("div", { class: "charts" }), body = html("tbody");
  const legend = html("table", { class: "legend" },
    html("caption", { class: "unseen" }, "The curves' values at the chosen place"),
    html("thead", {}, html("tr", {}, head, ...data.charts.map((chart) => html("th", { scope: "col" }, chart.title)))), body);
  const values = names.map((name) => {
    const cells = data.charts.map(() => html("td"));
    const button = html("button", { type: "button", "aria-pressed": "true", title: "Show or hide this curve", onclick: () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      redraw();
    } }, swatch(look[name]), name);
    body.append(html("tr", { class: data.highlight.includes(name) ? "own" : "" }, html("th", { scope: "row" }, button), ...cells));
    return cells;
  });
  section.append(html("div", { class: "controls" }, labelled(html("span", {}, `Read off at ${data.charts[0].x}: `, at), slider, "wide")), place, legend);
  const one = canvasOf(data.charts, place, (chart, width) => draw(chart, width, look, {
    hidden, cursor, tag, over: (x, name) => { [cursor, tag] = [x, { x, name }]; redraw(); },
  }));
  function redraw() {
    one();
    slider.value = xs.indexOf(cursor);
    slider.setAttribute("aria-valuetext", `${data.charts[0].x}: ${cursor}`);
    at.textContent = cursor;
    head.textContent = `Method, at ${cursor}`;
    names.forEach((name, i) => data.charts.forEach((chart, j) => {
      const found = (chart.series[name] ?? []).findLast((point) => point[0] <= cursor);  // a method may have only fewer
      const less = found && found[0] < cursor ? ` (at ${found[0]})` : "";
      values[i][j].textContent = found ? written(found[1], chart.decimals) + less : "-";
    }));
  }
  redraw();
}

/* ---- what was learned ---- */

function weights(matrix) {
  const columns = matrix[0].length, side = 340 / (columns + 1.5), size = side * (columns + 1) + 26;
  const most = Math.max(...matrix.flat().map(Math.abs)) || 1;
  const said = html("p", { class: "readout" }, "Row k: what y_k is made of. Blue is negative, red is positive.");
  const made = svg("svg", { viewBox: `0 0 360 ${size}`, role: "img", class: "weights", "aria-label": `Weights b_kj of ${columns} velocities, between ${-most.toFixed(2)} and ${most.toFixed(2)}; the numbers follow below` });
  matrix.forEach((row, k) => row.forEach((value, j) => {
    if (j >= k) return;
    const colour = `color-mix(in srgb, var(${value < 0 ? "--minus" : "--plus"}) ${Math.round(100 * Math.abs(value) / most)}%, var(--paper))`;
    const cell = svg("rect", { x: 26 + j * side, y: (k - 1) * side, width: side, height: side });
    cell.style.fill = colour;
    cell.addEventListener("pointerenter", () => { said.textContent = `b_${k},${j} = ${value.toFixed(5)}`; });
    made.append(cell);
  }));
  const stride = Math.ceil(columns / 12);
  for (let k = 1; k <= columns; k += stride) made.append(svg("text", { x: 20, y: (k - 0.5) * side + 4, "text-anchor": "end" }, String(k)));
  for (let j = 0; j < columns; j += stride) made.append(svg("text", { x: 26 + (j + 0.5) * side, y: columns * side + 16, "text-anchor": "middle" }, String(j)));
  return html("div", {}, html("h3", {}, "Weights b_kj (row k, column j)"), html("div", { class: "chart" }, made), said);
}

function learned(section, data) {
  const parts = Object.keys(data.solvers).map((name) => html("div", { class: "part" }, html("h3", { class: "name" }, name)));
  section.append(...parts);
  Object.values(data.solvers).forEach((plots, i) => plotted(parts[i], plots, parts.length > FEW));
  oneOf(parts, data.label, Object.keys(data.solvers));
}

function plotted(part, { charts, weights: matrix, numbers }, long) {
  const inner = html("div", { class: "charts" });
  const drawn = distinct(charts.flatMap((chart) => Object.keys(chart.series))), several = charts.some((chart) => Object.keys(chart.series).length > 1);
  const look = several ? looks(drawn, drawn.slice(-1)) : Object.fromEntries(drawn.map((name) => [name, { colour: "var(--c0)", width: 2, dash: "none", mark: MARKS[0] }]));
  let tags = new Map();
  part.append(inner);
  canvasOf(charts, inner, (chart, width, redraw) => draw(chart, width, look, {
    tag: tags.get(chart), over: (x, name) => { tags = new Map([[chart, { x, name }]]); redraw(); },
  }));
  if (matrix) inner.append(weights(matrix));
  if (several) part.append(html("ul", { class: "names" }, ...drawn.map((name) => html("li", {}, swatch(look[name]), name))));
  if (numbers) part.append(html("details", { class: long ? "long" : "" }, html("summary", {}, "All numbers of this solver"), html("pre", { tabindex: 0 }, numbers)));
}
