// What all plots have in common: elements of SVG, markers, numbers as text, scales and axes.
const Axes = (() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const SHAPES = [
    (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`, // circle
    (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`, // square
    (r) => `M0,${-1.3 * r}L${1.2 * r},${r}H${-1.2 * r}z`, // triangle
    (r) => `M0,${-1.4 * r}L${1.4 * r},0L0,${1.4 * r}L${-1.4 * r},0z`, // diamond
    (r) => `M0,${1.3 * r}L${1.2 * r},${-r}H${-1.2 * r}z`, // triangle downwards
    (r) => `M0,${-1.5 * r}L${0.45 * r},${-0.5 * r}L${1.5 * r},${-0.4 * r}L${0.7 * r},${0.35 * r}` +
      `L${0.95 * r},${1.4 * r}L0,${0.8 * r}L${-0.95 * r},${1.4 * r}L${-0.7 * r},${0.35 * r}` +
      `L${-1.5 * r},${-0.4 * r}L${-0.45 * r},${-0.5 * r}z`, // star
    (r) => `M${-r / 2.2},${-1.2 * r}h${r / 1.1}v${0.75 * r}h${0.75 * r}v${r / 1.1}h${-0.75 * r}` +
      `v${0.75 * r}h${-r / 1.1}v${-0.75 * r}h${-0.75 * r}v${-r / 1.1}h${0.75 * r}z`, // plus
    (r) => `M${-1.2 * r},${-0.6 * r}h${2.4 * r}v${1.2 * r}h${-2.4 * r}z`, // bar
  ];

  function add(parent, tag, attributes = {}, text) {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const shape = (slot, r) => SHAPES[slot % SHAPES.length](r);

  // Numbers for people: as many digits as tell values apart, no more.
  function show(value, percent) {
    if (!known(value)) return "–";
    if (percent) return `${(100 * value).toFixed(1)} %`;
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
    if (size >= 1e7 || size < 1e-4) return value.toExponential(2);
    return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.01 ? 3 : 5);
  }
  const both = (mean, error, percent) =>
    known(error) && known(mean) ? `${show(mean, percent)} ± ${show(error, percent)}` : show(mean, percent);

  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw * 0.999) * power;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return { at: found, step };
  }

  function tickText(value, step, percent) {
    const [v, s] = percent ? [100 * value, 100 * step] : [value, step];
    if (Math.abs(v) >= 1e7 || (s < 1e-5 && v !== 0)) return v.toExponential(1);
    const digits = Math.max(0, -Math.floor(Math.log10(s) + 1e-9));
    const more = Math.abs(s * 10 ** digits - Math.round(s * 10 ** digits)) > 1e-6 ? 1 : 0;
    const text = (Math.abs(v) < s * 1e-9 ? 0 : v).toLocaleString("en", {
      minimumFractionDigits: Math.min(8, digits + more), maximumFractionDigits: Math.min(8, digits + more) });
    return percent ? `${text} %` : text;
  }

  const scale = (low, high, from, to, log) => {
    const f = log ? Math.log : (v) => v;
    const [a, b] = [f(low), f(high)];
    return (v) => from + ((f(v) - a) / (b - a || 1)) * (to - from);
  };

  function padded(values, withZero, inside) {
    let low = Math.min(...values), high = Math.max(...values);
    if (withZero) [low, high] = [Math.min(0, low), Math.max(0, high)];
    if (!Number.isFinite(low)) return [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    const [a, b] = [withZero && low === 0 ? 0 : low - pad, withZero && high === 0 ? 0 : high + pad];
    // Shares do not go beyond 0 and 1, so neither do their axes.
    return inside && low >= 0 && high <= 1 ? [Math.max(0, a), Math.min(1, b)] : [a, b];
  }

  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

  // How wide a text of a plot is, in the fonts of the page.
  const pen = document.createElement("canvas").getContext("2d");
  let family = "";
  function wide(text, size = 12) {
    if (!family) family = getComputedStyle(document.body).fontFamily;
    pen.font = `${size}px ${family}`;
    return pen.measureText(text).width;
  }

  // A text, cut at its end, or at its start, where there is no room for all of it.
  function fitted(text, room, size, start) {
    const cut = (letters) => (start ? `…${text.slice(-letters).trimStart()}` : `${text.slice(0, letters).trimEnd()}…`);
    if (wide(text, size) <= room) return text;
    let letters = text.length - 1;
    while (letters > 1 && wide(cut(letters), size) > room) letters--;
    return cut(letters);
  }

  // The plot's own area is so tall; what is above and below comes on top.
  function sheet(area, plot, width, tall, left, bottom, top = 28, right = 12) {
    const height = top + tall + bottom;
    const svg = add(area, "svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img" });
    svg.setAttribute("aria-label", `${plot.title}. ${plot.y || ""} by ${plot.x || "group"}. ` +
      "Arrow keys read the values.");
    return { svg, x0: left, x1: width - right, y0: height - bottom, y1: top, width, height };
  }

  // Ticks of an axis that is so tall, their texts, and how much room these need on the left.
  function yTicks(low, high, tall, percent) {
    const { at, step } = ticks(low, high, Math.max(3, Math.round(tall / 38)));
    const texts = at.map((value) => tickText(value, step, percent));
    return { at, texts, left: Math.ceil(12 + most(texts.map((text) => wide(text)))) };
  }

  function yAxis(box, plot, marks, at) {
    marks.at.forEach((value, i) => {
      const y = at(value);
      add(box.svg, "line", { x1: box.x0, x2: box.x1, y1: y, y2: y, class: value === 0 ? "zero" : "grid" });
      add(box.svg, "text", { x: box.x0 - 7, y: y + 4, "text-anchor": "end" }, marks.texts[i]);
    });
    add(box.svg, "text", { x: 2, y: 13, class: "label" }, fitted(plot.y, box.width - 4, 12.5));
  }

  function nothing(box, why) {
    add(box.svg, "text", { x: (box.x0 + box.x1) / 2, y: (box.y0 + box.y1) / 2, class: "empty",
      "text-anchor": "middle" }, why);
    return { count: 0 };
  }

  const empty = (plot) => (plot.series.some((each) => each.y.some(known)) ? "All are switched off." : "No numbers yet.");

  return { add, known, shape, show, both, ticks, tickText, scale, padded, least, most, wide, fitted, sheet, yTicks,
    yAxis, nothing, empty };
})();
