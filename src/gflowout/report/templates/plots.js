// Draws plots from their data as SVG, independent of the page around them.
// draw(area, plot, shown, room) gives a reader: places that can be pointed at, by mouse or keys.
const Plots = (() => {
  "use strict";
  const { add, known, shape, show, both, ticks, tickText, scale, padded, least, most, wide, fitted,
    sheet, yTicks, yAxis, nothing, empty } = Axes;
  const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779",
    "#6ece58", "#b5de2b", "#fde725"];
  const DIVERGING = ["#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2182b"];

  const group = (svg, series) => add(svg, "g", {
    class: `series s${series.slot}${series.paper ? " paper" : ""}`, "data-name": series.name });

  // The name of what runs from left to right: under its middle, as far as there is room.
  function middle(box, y, text) {
    const short = fitted(text, box.width - 4, 12.5);
    const half = wide(short, 12.5) / 2;
    const x = Math.min((box.x0 + box.x1) / 2, box.width - half - 2);
    add(box.svg, "text", { x: Math.max(x, half + 2), y, class: "label", "text-anchor": "middle" }, short);
  }

  function plane(area, plot, series, width) {
    const points = plot.kind === "points";
    const tall = Math.round(Math.min(286, Math.max(166, width * (points ? 0.72 : 0.6) - 74)));
    const ys = [], xs = [];
    for (const each of series) each.y.forEach((y, i) => {
      if (!known(y) || !known(each.x[i])) return;
      const e = each.error && known(each.error[i]) ? each.error[i] : 0;
      ys.push(y - e, y + e); xs.push(each.x[i]);
    });
    const [low, high] = padded([least(ys), most(ys)], false, plot.percent);
    const places = [...new Set(xs)].sort((a, b) => a - b);
    // Doubling sizes, such as 1000, 2000, 4000, have equal steps on a logarithmic axis.
    const ratios = places.slice(1).map((x, i) => x / places[i]);
    const log = !points && places.length > 2 && places[0] > 0 && ratios.every((r) => Math.abs(r - ratios[0]) < 0.01 * r) && ratios[0] > 1.4;
    const few = !points && places.length <= 8;
    const upwards = yTicks(low, high, tall, plot.percent);
    const box = sheet(area, plot, width, tall, upwards.left, 46);
    middle(box, box.height - 6, plot.x);
    if (!xs.length) return nothing(box, empty(plot));
    let [a, b] = [places[0], places[places.length - 1]];
    if (a === b) [a, b] = [a - 1, b + 1];
    else if (points) [a, b] = padded([a, b]);
    const X = scale(a, b, box.x0 + (points ? 0 : 8), box.x1 - (points ? 0 : 8), log);
    const Y = scale(low, high, box.y0, box.y1);
    yAxis(box, plot, upwards, Y);
    const marks = few ? { at: places, step: Math.min(1, ...places.slice(1).map((x, i) => x - places[i])) }
      : ticks(a, b, Math.max(3, Math.round((box.x1 - box.x0) / 80)));
    let edge = -Infinity;
    for (const value of marks.at) {
      const text = few ? show(value) : tickText(value, marks.step);
      const half = wide(text) / 2;
      const x = Math.min(X(value), width - half - 1);
      if (x - half < edge + 4) continue;
      edge = x + half;
      add(box.svg, "line", { x1: X(value), x2: X(value), y1: box.y0, y2: box.y0 + 4, class: "axis" });
      add(box.svg, "text", { x, y: box.y0 + 18, "text-anchor": "middle" }, text);
    }
    add(box.svg, "line", { x1: box.x0, x2: box.x1, y1: box.y0, y2: box.y0, class: "axis" });
    for (const each of series) {
      const at = each.x.map((x, i) => [X(x), Y(each.y[i]), each.error ? each.error[i] : null, each.y[i], x])
        .filter((p) => known(p[0]) && known(p[1]) && known(p[3]) && known(p[4]));
      const g = group(box.svg, each);
      if (points) {
        for (const [x, y] of at) add(g, "path", { d: shape(each.slot, 2.6), transform: `translate(${x},${y})`, class: "dot" });
        continue;
      }
      at.sort((p, q) => p[0] - q[0]);
      const path = (list) => list.map((p) => `${p[0].toFixed(1)},${p[1].toFixed(1)}`).join("L");
      if (each.error && at.length > 1) {
        const up = at.map((p) => [p[0], Y(p[3] + (p[2] || 0))]);
        const down = at.map((p) => [p[0], Y(p[3] - (p[2] || 0))]).reverse();
        add(g, "path", { d: `M${path([...up, ...down])}z`, class: "band" });
      }
      if (at.length > 1) add(g, "path", { d: `M${path(at)}`, class: "line" });
      const skip = Math.ceil(at.length / 10);
      at.forEach((p, i) => {
        if ((i + each.slot) % skip) return;
        if (at.length === 1 && known(p[2]) && p[2] > 0)
          add(g, "path", { d: `M${p[0]},${Y(p[3] - p[2])}V${Y(p[3] + p[2])}`, class: "whisker" });
        add(g, "path", { d: shape(each.slot, 3.4), transform: `translate(${p[0]},${p[1]})`, class: "mark" });
      });
    }
    return points ? readPoints(box, plot, series, X, Y) : readCurves(box, plot, series, X, Y, places);
  }

  function readCurves(box, plot, series, X, Y, places) {
    const at = (index) => {
      const x = places[index];
      const rows = [];
      for (const each of series) {
        let nearest = -1;
        each.x.forEach((value, i) => {
          if (known(each.y[i]) && (nearest < 0 || Math.abs(value - x) < Math.abs(each.x[nearest] - x))) nearest = i;
        });
        if (nearest < 0 || Math.abs(X(each.x[nearest]) - X(x)) > 6) continue;
        rows.push({ slot: each.slot, name: each.label, value: each.y[nearest],
          text: both(each.y[nearest], each.error && each.error[nearest], plot.percent) });
      }
      rows.sort((p, q) => q.value - p.value);
      return { head: `${plot.x} ${show(x)}`, rows, x: X(x), y: rows.length ? Y(rows[0].value) : box.y1,
        mark: `M${X(x)},${box.y0}V${box.y1}` };
    };
    const find = (px) => nearestIndex(places.map((x) => Math.abs(X(x) - px)));
    return { count: places.length, at, find };
  }

  function nearestIndex(distances) {
    let best = -1;
    distances.forEach((d, i) => { if (best < 0 || d < distances[best]) best = i; });
    return best;
  }

  function readPoints(box, plot, series, X, Y) {
    const all = [];
    for (const each of series) each.x.forEach((x, i) => {
      if (known(x) && known(each.y[i])) all.push([x, each.y[i], each]);
    });
    all.sort((p, q) => p[0] - q[0]);
    const at = (index) => {
      const [x, y, each] = all[index];
      return { head: each.label, x: X(x), y: Y(y), mark: `M${X(x) - 6},${Y(y)}a6,6 0 1,0 12,0a6,6 0 1,0 -12,0`,
        rows: [{ name: plot.x, text: show(x) }, { name: plot.y, text: show(y) }] };
    };
    const find = (px, py) => {
      const index = nearestIndex(all.map((p) => Math.hypot(X(p[0]) - px, Y(p[1]) - py)));
      return index >= 0 && Math.hypot(X(all[index][0]) - px, Y(all[index][1]) - py) < 40 ? index : -1;
    };
    return { count: all.length, at, find };
  }

  // A label in lines that have so much room; null if a word is longer.
  function wrapped(label, room) {
    const lines = [""];
    for (const word of label.split(/\s+/)) {
      if (wide(word) > room) return null;
      const last = lines[lines.length - 1];
      if (last && wide(`${last} ${word}`) > room) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines;
  }

  // A mean with its error, or with the ends of an interval.
  function barText(each, i, percent) {
    if (known(each.error[i]) || !known(each.low[i])) return both(each.y[i], each.error[i], percent);
    return `${show(each.y[i], percent)} (${show(each.low[i], percent)} to ${show(each.high[i], percent)})`;
  }

  // Slanted labels: degrees, the longest, what their upper corner adds to the left.
  const SLANT = 32, LONGEST = 170, CORNER = 7;
  const SINE = Math.sin(SLANT * Math.PI / 180), COSINE = Math.cos(SLANT * Math.PI / 180);
  const reach = (label) => Math.min(LONGEST, wide(label)) * COSINE + CORNER;

  function bars(area, plot, series, room) {
    const groups = plot.labels.length;
    const ends = [];
    for (const each of series) each.y.forEach((y, i) => {
      if (known(y)) ends.push(y, ...[each.low[i], each.high[i]].filter(known));
    });
    const [low, high] = padded([least(ends), most(ends)], true);
    const tall = Math.round(Math.min(282, Math.max(172, room * 0.55 - 58)));
    const upwards = yTicks(low, high, tall, plot.percent);
    let left = upwards.left;
    const narrowest = groups * (series.length * 5 + 10);
    let width = Math.max(room, left + 12 + narrowest);
    const lines = plot.labels.map((label) => wrapped(label, (width - left - 12) / groups - 4));
    const long = lines.some((each) => each === null || each.length > 5);
    if (long) { // slanted ones run to the left, and the first have the least room there
      const needed = plot.labels.map((label, i) => {
        const share = (i + 0.5) / groups;
        return (reach(label) - share * (width - 12)) / (1 - share);
      });
      left = Math.max(left, Math.min(0.3 * room, most(needed)));
      width = Math.max(room, left + 12 + narrowest);
    }
    const slotWidth = (width - left - 12) / groups;
    const bottom = long ? 24 + Math.min(LONGEST, most(plot.labels.map((label) => wide(label)))) * SINE
      : 16 + 14 * most(lines.map((each) => each.length));
    const box = sheet(area, plot, width, tall, left, bottom);
    if (width > room) box.svg.style.width = `${width}px`;
    if (!ends.length) return nothing(box, empty(plot));
    const Y = scale(low, high, box.y0, box.y1);
    yAxis(box, plot, upwards, Y);
    add(box.svg, "line", { x1: box.x0, x2: box.x1, y1: Y(0), y2: Y(0), class: "zero" });
    const thick = Math.min(34, (slotWidth * 0.84) / series.length);
    const start = (i) => box.x0 + i * slotWidth + (slotWidth - thick * series.length) / 2;
    plot.labels.forEach((label, i) => {
      const x = box.x0 + (i + 0.5) * slotWidth;
      if (long) add(box.svg, "text", { x, y: box.y0 + 18, "text-anchor": "end",
        transform: `rotate(-${SLANT} ${x} ${box.y0 + 14})` }, fitted(label, Math.min(LONGEST, (x - CORNER) / COSINE)));
      else lines[i].forEach((line, k) => add(box.svg, "text", { x, y: box.y0 + 18 + 14 * k, "text-anchor": "middle" }, line));
    });
    series.forEach((each, k) => {
      const g = group(box.svg, each);
      each.y.forEach((y, i) => {
        if (!known(y)) return;
        const x = start(i) + k * thick;
        add(g, "rect", { x: x + 0.5, width: Math.max(1, thick - 1), y: Math.min(Y(y), Y(0)),
          height: Math.max(0.5, Math.abs(Y(y) - Y(0))), class: "bar", rx: Math.min(2, thick / 4) });
        if (known(each.low[i]) && each.high[i] > each.low[i])
          add(g, "path", { d: `M${x + thick / 2},${Y(each.low[i])}V${Y(each.high[i])}`, class: "whisker" });
      });
    });
    return {
      count: groups,
      at: (i) => ({ head: plot.labels[i], x: box.x0 + (i + 0.5) * slotWidth, y: box.y1 + 20,
        mark: `M${box.x0 + i * slotWidth + 1},${box.y1}h${slotWidth - 2}V${box.y0}h${2 - slotWidth}z`,
        rows: series.filter((each) => known(each.y[i])).map((each) => ({ slot: each.slot, name: each.label,
          text: barText(each, i, plot.percent) })) }),
      find: (px) => Math.max(0, Math.min(groups - 1, Math.floor((px - box.x0) / slotWidth))),
    };
  }

  function mixed(colours, share) {
    const place = Math.max(0, Math.min(1, share)) * (colours.length - 1);
    const k = Math.min(colours.length - 2, Math.floor(place));
    const part = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
    return [0, 1, 2].map((i) => Math.round(part(colours[k], i) + (place - k) * (part(colours[k + 1], i) - part(colours[k], i))));
  }

  function image(values, colour) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [values[0].length, values.length];
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(canvas.width, canvas.height);
    values.flat().forEach((value, i) => pixels.data.set(known(value) ? [...colour(value), 255] : [128, 128, 128, 60], 4 * i));
    context.putImageData(pixels, 0, 0);
    return canvas.toDataURL();
  }

  function heat(area, plot, width) {
    const rows = plot.values.length, columns = rows ? plot.values[0].length : 0;
    const names = plot.rows.length === rows ? plot.rows : plot.values.map((_, i) => String(i));
    const heads = plot.columns.length === columns ? plot.columns : [];
    const left = Math.ceil(12 + Math.min(100, Math.max(0, most(names.map((name) => wide(name))))));
    const inner = width - left - 12;
    const size = Math.max(4, Math.min(rows <= 16 ? 30 : 16, Math.max(340 / rows, rows <= 16 ? 22 : 0)));
    const widest = most(heads.map((head) => wide(head)));
    const tall = widest > inner / columns - 2;
    const bottom = 86 + (tall ? Math.min(66, 0.64 * widest) : 0);
    const box = sheet(area, plot, width, Math.round(rows * size), left, bottom, 24);
    if (!rows || !columns) return nothing(box, "No numbers yet.");
    const flat = plot.values.flat().filter(known);
    const low = known(plot.low) ? plot.low : least(flat), high = known(plot.high) ? plot.high : most(flat);
    const colours = low < 0 && high > 0 ? DIVERGING : VIRIDIS;
    const edge = Math.max(-low, high);
    const share = (v) => (colours === DIVERGING ? (v + edge) / (2 * edge) : (v - low) / (high - low || 1));
    const colour = (v) => mixed(colours, share(v));
    const [w, h] = [(box.x1 - box.x0) / columns, (box.y0 - box.y1) / rows];
    const picture = (href, x, y, width, height) => add(box.svg, "image", { href, x, y, width, height,
      preserveAspectRatio: "none", style: "image-rendering: pixelated", class: "cells" });
    picture(image(plot.values, colour), box.x0, box.y1, box.x1 - box.x0, box.y0 - box.y1);
    const every = Math.ceil(14 / h);
    names.forEach((name, i) => {
      if (i % every) return;
      add(box.svg, "text", { x: box.x0 - 6, y: box.y1 + (i + 0.5) * h + 4, "text-anchor": "end" },
        fitted(name, 100));
    });
    if (heads.length) {
      const step = Math.ceil((tall ? 22 : widest) / w);
      heads.forEach((head, i) => {
        if (i % step) return;
        const x = box.x0 + (i + 0.5) * w;
        const room = tall ? Math.min(100, (x - CORNER) / Math.cos(40 * Math.PI / 180)) : step * w; // slanted: to the left
        const text = add(box.svg, "text", { x, y: box.y0 + 16, "text-anchor": tall ? "end" : "middle", class: tall ? "small" : "" },
          fitted(head, room, tall ? 11 : 12, true));
        if (tall) text.setAttribute("transform", `rotate(-40 ${x} ${box.y0 + 12})`);
      });
    } else {
      const marks = ticks(0, columns - 1, Math.max(2, Math.round(inner / 70)));
      for (const value of marks.at.filter(Number.isInteger))
        add(box.svg, "text", { x: box.x0 + (value + 0.5) * w, y: box.y0 + 16, "text-anchor": "middle" }, String(value));
    }
    if (w >= 34 && h >= 18 && rows * columns <= 240) plot.values.forEach((line, r) => line.forEach((value, c) => {
      if (!known(value)) return;
      const [red, green, blue] = colour(value);
      add(box.svg, "text", { x: box.x0 + (c + 0.5) * w, y: box.y1 + (r + 0.5) * h + 4, "text-anchor": "middle", class: "cell-text",
        style: `fill: ${0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#111" : "#fff"}` }, value.toFixed(2));
    }));
    const under = box.height - 40;
    middle(box, under - 12, plot.x);
    add(box.svg, "text", { x: 2, y: 13, class: "label" }, fitted(plot.y, width - 4, 12.5));
    const from = colours === DIVERGING ? -edge : low, to = colours === DIVERGING ? edge : high;
    const strip = Math.min(220, inner * 0.6), x = (box.x0 + box.x1 - strip) / 2;
    picture(image([Array.from({ length: 128 }, (_, i) => from + ((to - from) * i) / 127)], colour), x, under + 4, strip, 10);
    [[from, 0, "start"], [(from + to) / 2, 0.5, "middle"], [to, 1, "end"]].forEach(([value, place, anchor]) =>
      add(box.svg, "text", { x: x + place * strip, y: under + 29, "text-anchor": anchor }, String(Number(value.toPrecision(3)))));
    return {
      count: rows * columns, columns,
      at: (i) => {
        const r = Math.floor(i / columns), c = i % columns;
        return { head: `${names[r]}, ${heads[c] || `${plot.x} ${c}`}`, x: box.x0 + (c + 0.5) * w, y: box.y1 + (r + 0.5) * h,
          mark: `M${box.x0 + c * w},${box.y1 + r * h}h${w}v${h}h${-w}z`, rows: [{ name: "value", text: show(plot.values[r][c]) }] };
      },
      find: (px, py) => {
        const c = Math.floor((px - box.x0) / w), r = Math.floor((py - box.y1) / h);
        return c >= 0 && c < columns && r >= 0 && r < rows ? r * columns + c : -1;
      },
    };
  }

  function draw(area, plot, shown, room) {
    area.replaceChildren();
    const width = Math.max(260, Math.round(room));
    const series = (plot.series || []).filter(shown);
    const reader = plot.kind === "heat" ? heat(area, plot, width)
      : plot.kind === "bars" ? bars(area, plot, series, width) : plane(area, plot, series, width);
    const svg = area.firstElementChild;
    const cursor = add(svg, "path", { class: "cursor", d: "" });
    return { ...reader, svg, cursor };
  }

  // The sample of a line and its marker in a switch.
  function sample(parent, slot, paper) {
    const svg = add(parent, "svg", { viewBox: "0 0 26 14", "aria-hidden": "true" });
    const g = add(svg, "g", { class: paper ? "paper" : "" });
    add(g, "path", { d: "M1,7H25", class: "line" });
    add(g, "path", { d: shape(slot, 3.6), transform: "translate(13,7)", class: "mark" });
    return svg;
  }

  // The numbers behind a plot: rows of text, the first one with headings.
  function figures(plot) {
    if (plot.kind === "heat") {
      const heads = plot.columns.length ? plot.columns : (plot.values[0] || []).map((_, i) => String(i));
      return [[plot.y, ...heads], ...plot.values.map((line, i) => [plot.rows[i] ?? String(i), ...line.map((v) => show(v))])];
    }
    if (plot.kind === "bars")
      return [["", ...plot.labels], ...plot.series.map((each) => [each.label,
        ...each.y.map((_, i) => barText(each, i, plot.percent))])];
    if (plot.kind === "points")
      return [["", plot.x, plot.y], ...plot.series.flatMap((each) => each.x.map((x, i) => [each.label, show(x), show(each.y[i])]))];
    const places = [...new Set(plot.series.flatMap((each) => each.x))].sort((a, b) => a - b);
    return [[plot.x, ...plot.series.map((each) => each.label)], ...places.map((x) => [show(x), ...plot.series.map((each) => {
      const i = each.x.indexOf(x);
      return i < 0 ? "" : both(each.y[i], each.error && each.error[i], plot.percent);
    })])];
  }

  return { draw, sample, figures };
})();
