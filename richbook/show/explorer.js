// Draws one cell of a recorded sweep: D_LR and accuracies during training, utilization at the end,
// and a map of the final D_LR to find one's way. No kernel is asked: the numbers came with the page.

const AXES = ["weight_decay", "target_scale", "learning_rate"];
const COLORS = { d_lr: "#d55e00" };

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
    nameSliders(el, sweep.axes, at);
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
  keepKeys(el, draw);
  return () => observer.disconnect();
}

export default { render };
