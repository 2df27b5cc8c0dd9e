// Draws one layer of a network of a recorded sweep: its six alignments during training beside what
// chance gives, the accuracies, and a map of an alignment at the end over learning rate and decay.

const CHOICES = ["weight_decay", "learning_rate", "batch_size", "activation", "layer"];
// H, G and Z have a colour each; a relation wears the colours of its two.
const COLORS = { H: "#0072b2", G: "#e69f00", Z: "#009e73" };
const RELATIONS = [
  { name: "RGA", pair: ["H", "G"] }, { name: "RWA", pair: ["H", "Z"] }, { name: "GWA", pair: ["G", "Z"] },
];
const SIDES = [{ name: "forward", mark: "b" }, { name: "backward", mark: "a", dashes: "7 4" }];
// Dark is aligned, as dark is rich.
const CIVIDIS = hexColors(
  ["fee838", "e1cc55", "c3b369", "a59c74", "8a8678", "707173", "575d6d", "3b496c", "123570"]);

const symbol = (letter) =>
  `<tspan font-style="italic" style="fill:${COLORS[letter]}" font-weight="700">${letter}</tspan>`;

// The curve of a relation: a wide line in one colour under a narrow one in the other.
function relationLine(d, [below, above], dashes) {
  const line = (letter, width) => `<path class="rb-relation" d="${d}" fill="none" stroke="${COLORS[letter]}" ` +
    `stroke-width="${width}"${dashes ? ` stroke-dasharray="${dashes}"` : ""}/>`;
  return line(below, 4.4) + line(above, 1.6);
}

// What chance gives, two standard deviations to either side of the mean.
function chanceBand(s, place, side, x, y) {
  const width = 2 * s.chance[s.at[4]][side];
  const means = s.steps.map((_, i) => s.null[place * s.steps.length + i]);
  const known = means.map((v, i) => [x(s.steps[i]), v]).filter(([, v]) => Number.isFinite(v));
  if (!known.length) return "";
  const edge = (sign) => known.map(([at, v]) => [at, y(Math.min(Math.max(v + sign * width * (1 - v), 0), 1))]);
  const middle = path(known.map(([at, v]) => [at, y(v)]));
  return `<path d="${path([...edge(1), ...edge(-1).reverse()])}Z" fill="url(#${s.id})"/>` +
    `<path class="rb-floor" fill="none" d="${middle}"${SIDES[side].dashes ? ' stroke-dasharray="3 3"' : ""}/>`;
}

function drawRelation(s, width, height, relation) {
  const { name, pair } = RELATIONS[relation], wide = width > 250;
  const { box, draw } = frame(width, height, { right: wide ? 62 : 34,
    title: `${name}: ${symbol(pair[0])} <tspan font-weight="400">with</tspan> ${symbol(pair[1])}`,
    xName: wide ? "training step <tspan font-style='italic'>t</tspan> (updates)" : "step <tspan font-style='italic'>t</tspan> (updates)",
    xTicks: decades(s.steps, wide), yTicks: [0, 0.5, 1] });
  const x = steps(s.steps, box.left, box.right), y = linear(0, 1, box.bottom, box.top), end = s.steps.length - 1;
  const places = SIDES.map((_, side) => s.place(s.cell, s.at[4], side, relation));
  const ends = places.map((place, side) => ({ at: y(s.alignment[(place * s.steps.length + end) * 3]),
    label: wide ? SIDES[side].name : SIDES[side].name.slice(0, 4) + "." })).filter(({ at }) => Number.isFinite(at));
  const seeds = (place) => {
    const low = curve(s.alignment, place, s.steps, x, y, 1).filter((p) => Number.isFinite(p[1]));
    const high = curve(s.alignment, place, s.steps, x, y, 2).filter((p) => Number.isFinite(p[1]));
    return high.length ? `<path d="${path([...high, ...low.reverse()])}Z" fill="${COLORS[pair[0]]}" fill-opacity="0.2"/>` : "";
  };
  return `<defs><pattern id="${s.id}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="1.2" height="5" fill="currentColor" fill-opacity="0.45"/></pattern></defs>` +
    draw(x, y) + places.map((place, side) => chanceBand(s, place, side, x, y)).join("") + places.map(seeds).join("") +
    places.map((place, side) => relationLine(path(curve(s.alignment, place, s.steps, x, y, 0)), pair, SIDES[side].dashes)).join("") +
    spread(ends, 13, box).map(({ at, label }) => text(box.right + 5, at + 4, label)).join("");
}

// The six alignments of a layer at the end of training, forward first; nan where a network diverged.
function atTheEnd(s, cell) {
  const end = s.steps.length - 1;
  return SIDES.flatMap((_, side) => RELATIONS.map((_, relation) =>
    s.alignment[(s.place(cell, s.at[4], side, relation) * s.steps.length + end) * 3]));
}

// One number of the six: their mean, the lowest, or one of them. A nan among them is passed on.
function summary(six, shown) {
  if (shown === 0) return six.reduce((sum, v) => sum + v, 0) / six.length;
  return shown === 1 ? Math.min(...six) : six[shown - 2];
}

const SHOWN = ["mean of the six", "lowest of the six",
  ...SIDES.flatMap(({ name }) => RELATIONS.map((relation) => `${name} ${relation.name}`))];

function drawMap(s, width, height) {
  const [decays, rates, sizes] = s.axes.map((axis) => axis.labels);
  const { box } = frame(width, height, { title: "", xName: "", xTicks: [], yTicks: [], left: 52, right: 2 });
  const w = (box.right - box.left) / rates.length, h = (box.bottom - box.top) / decays.length;
  let cells = "", mark = "";
  decays.forEach((decay, i) => rates.forEach((rate, j) => {
    const cell = s.network(i, j, s.at[2], s.at[3]), value = summary(atTheEnd(s, cell), s.shown);
    const x = box.left + j * w, y = box.bottom - (i + 1) * h, known = Number.isFinite(value);
    const rgb = shade(value, CIVIDIS), light = rgb[0] * 0.3 + rgb[1] * 0.59 + rgb[2] * 0.11 > 128;
    const at = `x="${fixed(x)}" y="${fixed(y)}" width="${fixed(w)}" height="${fixed(h)}"`;
    cells += `<g class="rb-cell" data-i="${i}" data-j="${j}"><title>weight decay ${decay}, learning rate ${rate}: ${inWords(s, cell)}</title>` +
      `<rect ${at} fill="${known ? `rgb(${rgb})` : "transparent"}" stroke="currentColor" stroke-opacity="0.15"/>` +
      text(x + w / 2, y + h / 2 + 4, known ? value.toFixed(2) : "–", { anchor: "middle",
        more: `style="fill:${!known ? "currentColor" : light ? "#000" : "#fff"}"` }) + "</g>";
    if (i === s.at[0] && j === s.at[1])
      mark = `<rect ${at} fill="none" stroke="#fff" stroke-width="5"/><rect ${at} fill="none" stroke="#d55e00" stroke-width="3"/>`;
  }));
  return text(0, 13, `${SHOWN[s.shown]} at the end, batch size ${sizes[s.at[2]]}`, { kind: "rb-title" }) + cells + mark +
    rates.map((v, j) => text(box.left + (j + 0.5) * w, box.bottom + 15, v, { anchor: "middle" })).join("") +
    decays.map((v, i) => text(box.left - 6, box.bottom - (i + 0.5) * h + 4, v, { anchor: "end" })).join("") +
    text((box.left + box.right) / 2, box.bottom + 31, "learning rate <tspan font-style='italic'>η</tspan> (per step)", { anchor: "middle" }) +
    text(-(box.top + box.bottom) / 2, 10, "weight decay <tspan font-style='italic'>γ</tspan>", { anchor: "middle", more: 'transform="rotate(-90)"' });
}

// How the layer of a network ended, in one line.
function inWords(s, cell) {
  const six = atTheEnd(s, cell), mean = summary(six, 0);
  const accuracy = s.test_accuracy[((cell + 1) * s.steps.length - 1) * 3];
  if (!Number.isFinite(accuracy)) return `diverged in ${s.seeds > 1 ? "every seed" : "its only seed"}`;
  const tested = `test accuracy ${accuracy.toFixed(2)}`;
  if (!Number.isFinite(mean)) return `alignment undefined (a matrix is 0) · ${tested}`;
  const lowest = summary(six, 1), which = SHOWN[2 + six.indexOf(lowest)];
  return `mean alignment ${mean.toFixed(2)} · lowest ${lowest.toFixed(2)} (${which}) · ${tested}`;
}

// Reads the traits once: everything that does not change when a slider moves.
function load(model) {
  const layout = model.get("contents"), axes = model.get("axes");
  const [decays, rates, sizes, activations, layers] = axes.map((axis) => axis.labels.length);
  const networks = decays * rates * sizes * activations, { fields, steps, seeds, chance } = layout;
  const sweep = { axes, steps, seeds, chance, id: `rb-chance-${Math.random().toString(36).slice(2)}` };
  for (const name in fields) {
    const cells = name.endsWith("accuracy") ? networks : networks * layers * 6;
    sweep[name] = unpack(model.get("packed"), fields[name], cells);
  }
  sweep.network = (i, j, k, activation) => ((activation * decays + i) * rates + j) * sizes + k;
  sweep.place = (cell, layer, side, relation) => ((cell * layers + layer) * 2 + side) * 3 + relation;
  return sweep;
}

// `span` is how many of six columns a panel takes, in a wide and in a narrow drawing.
const PANELS = [
  ...RELATIONS.map(({ name }, i) => ({ draw: (s, w, h) => drawRelation(s, w, h, i), name: `${name} during training`, tall: 180, span: [2, 3] })),
  { draw: drawMap, name: "Map over learning rate and weight decay", tall: 200, span: [3, 6] },
  { draw: drawAccuracy, name: "Train and test accuracy during training", tall: 180, span: [3, 3] },
];
const ORDER = [[0, 1, 2, 3, 4], [0, 1, 2, 4, 3]];  // wide; narrow, where two panels share a row

function render({ model, el }) {
  const sweep = load(model), gap = 20;
  el.classList.add("rb-explorer-view");
  el.innerHTML = '<div class="rb-explorer-readout" aria-live="polite"></div>' +
    '<div class="rb-explorer-panels" style="grid-template-columns: repeat(6, minmax(0, 1fr)); column-gap: 0">' +
    PANELS.map(() => '<svg role="img"></svg>').join("") + '</div><div class="rb-explorer-note"></div>';
  const [readout, panels, note] = el.children;

  function draw() {
    const at = CHOICES.map((name) => model.get(name));
    const cell = sweep.network(...at.slice(0, 4)), words = inWords({ ...sweep, at }, cell);
    const state = { ...sweep, at, cell, shown: model.get("shown") };
    const width = el.clientWidth || 640, narrow = width >= 620 ? 0 : 1;
    PANELS.forEach((panel, i) => {
      const svg = panels.children[i], columns = panel.span[narrow], w = width * columns / 6 - (columns < 6 ? gap / 2 : 0);
      svg.style.cssText = `grid-column: span ${columns}; order: ${ORDER[narrow].indexOf(i)}; width: ${w}px`;
      svg.setAttribute("viewBox", `0 0 ${w} ${panel.tall}`);
      svg.setAttribute("aria-label", `${panel.name}. ${words}`);
      svg.innerHTML = panel.draw(state, w, panel.tall);
    });
    readout.style.minHeight = width < 620 ? "2.8em" : "1.4em";  // room to wrap, so nothing jumps
    readout.textContent = words;
    el.style.setProperty("--rb-shade", `rgb(${shade(summary(atTheEnd(state, cell), state.shown), CIVIDIS)})`);
    note.textContent = `Cosines of second moments: forward (solid) on the layer's output side, backward (dashed) on its input side. ` +
      `Lines are means over ${sweep.seeds} seed${sweep.seeds > 1 ? "s" : ""}, bands their range. ` +
      "Hatched: the same spectra with random eigenvectors, two standard deviations to either side. Click a cell of the map to go there.";
    nameSliders(el, sweep.axes.slice(0, 3), at);
  }

  [...CHOICES, "shown"].forEach((name) => model.on(`change:${name}`, draw));
  el.addEventListener("click", (event) => {
    const target = event.target.closest?.(".rb-cell");
    if (!target) return;
    model.set({ weight_decay: +target.dataset.i, learning_rate: +target.dataset.j });
    model.save_changes();
  });
  const observer = new ResizeObserver(() => draw());
  observer.observe(el);
  draw();
  keepKeys(el, draw);
  return () => observer.disconnect();
}

export default { render };
