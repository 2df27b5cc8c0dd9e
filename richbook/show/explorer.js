// Draws one cell of a recorded sweep: D_LR and accuracies during training, utilization at the end,
// and a map of the final D_LR to find one's way. No kernel is asked: the numbers came with the page.

const AXES = ["weight_decay", "target_scale", "learning_rate"];
const COLORS = { d_lr: "#d55e00", utilization: "#0072b2" };
const VIRIDIS = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

// The colour at a fraction of the rich-lazy axis: 0 is rich and dark, 1 is the isotropic floor.
function shade(fraction) {
  if (!Number.isFinite(fraction)) return [153, 153, 153];
  const place = Math.min(Math.max(fraction, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[low].map((c, i) => Math.round(c + (place - low) * (VIRIDIS[low + 1][i] - c)));
}

// Reads the codes of `pack`: the largest one is nan. Returns triples (mean, low, high) in a row.
function unpack(buffer, { offset, bits, length }, cells) {
  const view = new DataView(buffer.buffer ?? buffer, buffer.byteOffset ?? 0);
  const size = bits / 8, missing = 2 ** bits - 1, values = new Float32Array(cells * length * 3);
  for (let i = 0; i < values.length; i++) {
    const at = offset + i * size;
    const code = size === 1 ? view.getUint8(at) : view.getUint16(at, true);
    values[i] = code === missing ? NaN : code / (missing - 1);
  }
  return values;
}

// Scales: from data to pixels. Steps are logarithmic with a place for step 0.
const linear = (low, high, from, to) => (v) => from + ((v - low) / (high - low || 1)) * (to - from);
function steps(list, from, to) {
  const place = (t) => (list[0] < 1 ? (t < 1 ? t * 0.4 : 0.4 + Math.log10(t)) : Math.log10(t));
  if (list.length === 1) return () => (from + to) / 2;
  const scale = linear(place(list[0]), place(list[list.length - 1]), from, to);
  return (t) => scale(place(t));
}

const fixed = (v) => v.toFixed(1);
const text = (x, y, words, { anchor = "start", kind = "", more = "" } = {}) =>
  `<text x="${fixed(x)}" y="${fixed(y)}" text-anchor="${anchor}" class="${kind}" ${more}>${words}</text>`;
const line = (x1, y1, x2, y2, kind) =>
  `<line x1="${fixed(x1)}" y1="${fixed(y1)}" x2="${fixed(x2)}" y2="${fixed(y2)}" class="${kind}"/>`;

// A path through points; a point that is nan lifts the pen. A single point is a ring.
function path(points) {
  if (points.length === 1 && Number.isFinite(points[0][1]))
    return `M${fixed(points[0][0] - 3)},${fixed(points[0][1])}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0`;
  let pen = "M";
  return points.map(([x, y]) => {
    if (!Number.isFinite(y)) { pen = "M"; return ""; }
    const part = `${pen}${fixed(x)},${fixed(y)}`;
    pen = "L";
    return part;
  }).join("");
}

// One curve of a cell as pixels: `which` 0 is the mean over seeds, 1 the smallest, 2 the largest.
const curve = (values, cell, xs, x, y, which) =>
  xs.map((at, i) => [x(at), y(values[(cell * xs.length + i) * 3 + which])]);

function bandAndLine(values, cell, xs, x, y, color, dashed) {
  const low = curve(values, cell, xs, x, y, 1).filter((p) => Number.isFinite(p[1]));
  const high = curve(values, cell, xs, x, y, 2).filter((p) => Number.isFinite(p[1]));
  const outline = high.length ? path([...high, ...low.reverse()]) + "Z" : "";
  return `<path d="${outline}" fill="${color}" fill-opacity="0.22"/>` +
    `<path class="rb-line" d="${path(curve(values, cell, xs, x, y, 0))}" fill="none" ` +
    `stroke="${color}"${dashed ? ' stroke-dasharray="6 4"' : ""}/>`;
}

// The box of a panel: title, axes, ticks and names. Returns the scales' ranges and the markup.
function frame(width, height, { title, xName, xTicks, yTicks, right = 14, left = 34 }) {
  const box = { left, right: width - right, top: 30, bottom: height - 38 };
  const draw = (x, y) => text(0, 13, title, { kind: "rb-title" }) +
    yTicks.map((v) => line(box.left, y(v), box.right, y(v), "rb-grid") +
      text(box.left - 6, y(v) + 4, v, { anchor: "end" })).join("") +
    xTicks.map((v) => line(x(v), box.bottom, x(v), box.bottom + 4, "rb-axis") +
      text(x(v), box.bottom + 17, v, { anchor: "middle" })).join("") +
    line(box.left, box.bottom, box.right, box.bottom, "rb-axis") +
    line(box.left, box.top - 4, box.left, box.bottom, "rb-axis") +
    text((box.left + box.right) / 2, box.bottom + 33, xName, { anchor: "middle" });
  return { box, draw };
}

const SUBSCRIPT = 'D<tspan dy="3" font-size="75%">LR</tspan><tspan dy="-3">\u200b</tspan>';
const HAT_PI = 'Π<tspan dx="-9" dy="-4">^</tspan><tspan dy="4" dx="1">\u200b</tspan>';
function decades(list, wide) {
  const ends = [list[0], list[list.length - 1]];
  const found = [0, 1, 10, 100, 1000, 10000, 100000]
    .filter((t) => t >= ends[0] && t <= ends[1] && (wide || t === 1 || t === 100 || t === 10000));
  return found.length ? found : [...new Set(ends)];
}

function drawHistory(s, width, height) {
  const { box, draw } = frame(width, height, { title: `${SUBSCRIPT} during training`,
    xName: "training step <tspan font-style='italic'>t</tspan> (updates)", right: 44,
    xTicks: decades(s.steps, true), yTicks: ticks(s.top) });
  const x = steps(s.steps, box.left, box.right), y = linear(0, s.top, box.bottom, box.top);
  const end = s.steps.length - 1, last = (cell) => s.d_lr[(cell * s.steps.length + end) * 3];
  const others = s.family.cells.filter((cell) => cell !== s.cell);
  const names = s.family.cells.map((cell, i) => [last(cell), s.family.labels[i], cell === s.cell])
    .filter(([v, , here], i) => Number.isFinite(v) && (here || i === 0 || i === s.family.cells.length - 1));
  const floor = s.floor == null ? "" : line(box.left, y(s.floor), box.right, y(s.floor), "rb-floor") +
    text(box.right, y(s.floor) - 4, `isotropic floor ${+s.floor.toFixed(3)}`, { anchor: "end", kind: "rb-small" });
  return draw(x, y) + floor +
    others.map((cell) => `<path class="rb-other" fill="none" d="${path(curve(s.d_lr, cell, s.steps, x, y, 0))}"/>`).join("") +
    bandAndLine(s.d_lr, s.cell, s.steps, x, y, COLORS.d_lr) +
    spread(names.map(([v, label, here]) => ({ at: y(v), label, here })), 13, box).map(({ at, label, here }) =>
      text(box.right + 5, at + 4, label, here ? { more: `style="font-weight:600;fill:${COLORS.d_lr}"` } : { kind: "rb-small" })).join("");
}

function drawAccuracy(s, width, height) {
  const { box, draw } = frame(width, height, { right: 44,
    title: width > 260 ? "accuracy (fraction correct)" : "accuracy (fraction)",
    xName: "training step <tspan font-style='italic'>t</tspan> (updates)",
    xTicks: decades(s.steps, width > 300), yTicks: [0, 0.5, 1] });
  const x = steps(s.steps, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const last = (values) => values[(s.cell * s.steps.length + s.steps.length - 1) * 3];
  const ends = [["train", last(s.train_accuracy)], ["test", last(s.test_accuracy)]]
    .filter(([, v]) => Number.isFinite(v)).map(([label, v]) => ({ at: y(v), label }));
  return draw(x, y) + bandAndLine(s.train_accuracy, s.cell, s.steps, x, y, "currentColor") +
    bandAndLine(s.test_accuracy, s.cell, s.steps, x, y, "currentColor", true) +
    spread(ends, 13, box).map(({ at, label }) => text(box.right + 5, at + 4, label)).join("");
}

function drawUtilization(s, width, height) {
  const most = s.k[s.k.length - 1];
  const { box, draw } = frame(width, height, {
    title: `${width > 260 ? "cumulative utilisation" : "utilisation"} ${HAT_PI}(<tspan font-style="italic">k</tspan>)`,
    xName: "eigenfunctions <tspan font-style='italic'>k</tspan>", yTicks: [0, 0.5, 1],
    xTicks: [1, Math.round(most / 4), Math.round(most / 2), most] });
  const x = linear(1, most, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const others = s.family.cells.filter((cell) => cell !== s.cell);
  const rank = s.rank == null ? "" : line(x(s.rank), box.top, x(s.rank), box.bottom, "rb-floor") +
    text(x(s.rank) + 5, box.bottom - 6, `rank ${s.rank}`, { kind: "rb-small" });
  return draw(x, y) + rank +
    others.map((cell) => `<path class="rb-other" fill="none" d="${path(curve(s.utilization, cell, s.k, x, y, 0))}"/>`).join("") +
    bandAndLine(s.utilization, s.cell, s.k, x, y, COLORS.utilization);
}

// The rich-lazy axis as a small strip, at the right end of a title.
function scaleBar(right) {
  const colors = VIRIDIS.map((_, i) => `<rect x="${fixed(right - 34 - 6 * (9 - i))}" y="5" width="6.2" height="8" fill="rgb(${VIRIDIS[i]})"/>`);
  return text(right - 92, 13, "rich", { anchor: "end", kind: "rb-small" }) + colors.join("") +
    text(right, 13, "lazy", { anchor: "end", kind: "rb-small" });
}

function drawMap(s, width, height) {
  const [decays, scales, rates] = s.axes.map((axis) => axis.labels);
  const { box } = frame(width, height, { title: "", xName: "", xTicks: [], yTicks: [], left: 52, right: 2 });
  const w = (box.right - box.left) / scales.length, h = (box.bottom - box.top) / decays.length;
  let cells = "", mark = "";
  decays.forEach((decay, i) => scales.forEach((scale, j) => {
    const cell = s.index(i, j, s.at[2]), value = s.d_lr[(cell * s.steps.length + s.steps.length - 1) * 3];
    const x = box.left + j * w, y = box.bottom - (i + 1) * h, here = i === s.at[0] && j === s.at[1];
    const rgb = shade(value / s.light), known = Number.isFinite(value);
    const at = `x="${fixed(x)}" y="${fixed(y)}" width="${fixed(w)}" height="${fixed(h)}"`;
    cells += `<g class="rb-cell" data-i="${i}" data-j="${j}"><title>weight decay ${decay}, target scale ${scale}: ${s.readouts[cell]}</title>` +
      `<rect ${at} fill="${known ? `rgb(${rgb})` : "transparent"}" stroke="currentColor" stroke-opacity="0.15"/>` +
      (s.diverged[cell] ? `<rect ${at} fill="url(#${s.id})"/>` : "") +
      (w > 27 && h > 14 ? text(x + w / 2, y + h / 2 + 4, known ? value.toFixed(2) : "–", { anchor: "middle",
        more: `style="fill:${!known ? "currentColor" : rgb[0] * 0.3 + rgb[1] * 0.59 + rgb[2] * 0.11 > 128 ? "#000" : "#fff"}"` }) : "") + "</g>";
    if (here) mark = `<rect ${at} fill="none" stroke="#fff" stroke-width="5"/><rect ${at} fill="none" stroke="${COLORS.d_lr}" stroke-width="3"/>`;
  }));
  return `<defs><pattern id="${s.id}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" fill="currentColor" fill-opacity="0.5"/></pattern></defs>` +
    text(0, 13, `final ${SUBSCRIPT} at ${width > 350 ? "learning rate" : "η ="} ${rates[s.at[2]]}`, { kind: "rb-title" }) + scaleBar(box.right) + cells + mark +
    scales.map((v, j) => text(box.left + (j + 0.5) * w, box.bottom + 15, v, { anchor: "middle" })).join("") +
    decays.map((v, i) => text(box.left - 6, box.bottom - (i + 0.5) * h + 4, v, { anchor: "end" })).join("") +
    text((box.left + box.right) / 2, box.bottom + 31, "target scale <tspan font-style='italic'>s</tspan>", { anchor: "middle" }) +
    text(-(box.top + box.bottom) / 2, 10, "weight decay <tspan font-style='italic'>γ</tspan>", { anchor: "middle", more: 'transform="rotate(-90)"' });
}

// Ticks of a linear axis from 0 to `top`, at most five of them.
function ticks(top) {
  const gap = [0.05, 0.1, 0.2, 0.5].find((g) => top / g <= 5) ?? 0.5;
  return Array.from({ length: Math.floor(top / gap) + 1 }, (_, i) => +(i * gap).toFixed(2));
}

// Moves labels as little as it takes to be `gap` pixels apart and inside the box.
function spread(labels, gap, box) {
  labels.sort((a, b) => b.at - a.at);
  let limit = box.bottom;
  for (const label of labels) { label.at = Math.min(label.at, limit); limit = label.at - gap; }
  limit = box.top;
  for (const label of labels.reverse()) { label.at = Math.max(label.at, limit); limit = label.at + gap; }
  return labels;
}

// Reads the traits once: everything that does not change when a slider moves.
function load(model) {
  const layout = model.get("contents"), axes = model.get("axes"), readouts = model.get("readouts");
  const sweep = { ...layout, axes, readouts, id: `rb-hatch-${Math.random().toString(36).slice(2)}` };
  for (const name in layout.fields)
    sweep[name] = unpack(model.get("packed"), layout.fields[name], readouts.length);
  // The light end of the map's colours: the floor, or where that is 0 or unknown the largest value.
  const finals = readouts.map((_, cell) => sweep.d_lr[((cell + 1) * sweep.steps.length - 1) * 3]);
  sweep.light = sweep.floor || Math.max(...finals.filter((v) => v > 0), 1e-12);
  sweep.index = (i, j, k) => (i * axes[1].labels.length + j) * axes[2].labels.length + k;
  return sweep;
}

// How far up the D_LR axis must go: past the floor, and past every curve of these cells.
function reach(sweep, cells) {
  const length = sweep.steps.length * 3;
  let top = Math.max(sweep.floor ?? 0.5, 0.05) * 1.12;
  for (const cell of cells)
    for (let i = cell * length; i < (cell + 1) * length; i++) if (sweep.d_lr[i] > top) top = sweep.d_lr[i];
  return top;
}

const PANELS = [
  { draw: drawHistory, name: "D_LR during training", tall: 200, full: true },
  { draw: drawMap, name: "Map of the final D_LR over target scale and weight decay", tall: 200, full: true },
  { draw: drawAccuracy, name: "Train and test accuracy during training", tall: 160 },
  { draw: drawUtilization, name: "Cumulative utilization at the end of training", tall: 160 },
];

function render({ model, el }) {
  const sweep = load(model);
  let moved = 1;  // the slider moved last: its other values are drawn in grey
  el.classList.add("rb-explorer-view");
  el.innerHTML = '<div class="rb-explorer-readout" aria-live="polite"></div>' +
    '<div class="rb-explorer-panels">' + PANELS.map(() => '<svg role="img"></svg>').join("") + "</div>" +
    '<div class="rb-explorer-note"></div>';
  const [readout, panels, note] = el.children;

  function draw() {
    const at = AXES.map((name) => model.get(name)), cell = sweep.index(...at);
    const count = sweep.axes[moved].labels.length;
    const cells = Array.from({ length: count }, (_, v) => sweep.index(...at.map((a, i) => (i === moved ? v : a))));
    const state = { ...sweep, at, cell, family: { cells, labels: sweep.axes[moved].labels }, top: reach(sweep, cells) };
    const width = el.clientWidth || 640, wide = width >= 620;
    PANELS.forEach((panel, i) => {
      const svg = panels.children[i], w = wide || !panel.full ? (width - 20) / 2 : width;
      svg.style.gridColumn = !wide && panel.full ? "1 / -1" : "auto";
      svg.setAttribute("viewBox", `0 0 ${w} ${panel.tall}`);
      svg.setAttribute("aria-label", `${panel.name}. ${sweep.readouts[cell]}`);
      svg.innerHTML = panel.draw(state, w, panel.tall);
    });
    readout.style.minHeight = width < 760 ? "2.8em" : "1.4em";  // room to wrap, so nothing jumps
    readout.textContent = sweep.readouts[cell];
    const final = sweep.d_lr[(cell * sweep.steps.length + sweep.steps.length - 1) * 3];
    el.style.setProperty("--rb-shade", `rgb(${shade(final / sweep.light)})`);
    note.textContent = `Lines are means over ${sweep.seeds} seed${sweep.seeds > 1 ? "s" : ""}, bands their range. ` +
      `Grey: the other values of ${sweep.axes[moved].words}. Click a cell of the map to go there` +
      (sweep.diverged.some((count) => count) ? "; hatched: a seed diverged." : ".");
    nameSliders(at);
  }

  // Slider handles have no name of their own, and their value is only a position.
  function nameSliders(at) {
    const handles = el.closest(".rb-explorer")?.querySelectorAll(".noUi-handle") ?? [];
    const movable = [0, 1, 2].filter((i) => sweep.axes[i].labels.length > 1);
    movable.forEach((i, position) => {
      handles[position]?.setAttribute("aria-label", sweep.axes[i].words);
      handles[position]?.setAttribute("aria-valuetext", sweep.axes[i].labels[at[i]]);
    });
  }

  AXES.forEach((name, i) => model.on(`change:${name}`, () => { moved = i; draw(); }));
  el.addEventListener("click", (event) => {
    const target = event.target.closest?.(".rb-cell");
    if (!target) return;
    model.set({ weight_decay: +target.dataset.i, target_scale: +target.dataset.j });
    model.save_changes();
  });
  const observer = new ResizeObserver(() => draw());
  observer.observe(el);
  draw();
  // Keys that move a slider are for the slider, not for the notebook around it.
  const keep = (event) => { if (/^(Arrow|Page|Home|End)/.test(event.key)) event.stopPropagation(); };
  requestAnimationFrame(() => {
    el.closest(".rb-explorer")?.addEventListener("keydown", keep);
    draw();
  });
  return () => observer.disconnect();
}

export default { render };
