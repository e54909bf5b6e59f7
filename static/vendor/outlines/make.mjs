// Makes outlines.json from the npm packages world-atlas@2.0.2 and us-atlas@3.0.1 (run where they, topojson-client@3 and topojson-simplify@3 are installed):
//   node make.mjs > outlines.json
// Each line is [x, y, dx, dy, dx, dy, …] in steps of 1/50 degree, longitude and latitude; `land` are rings to fill, the others open lines.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const require = createRequire(process.cwd() + "/");
const { feature, mesh } = require("topojson-client");
const { presimplify, simplify } = require("topojson-simplify");
const read = (name) => JSON.parse(readFileSync(`node_modules/${name}`, "utf8"));
const STEPS = 50;

const lines = (coordinates, shortest) => {
  const found = [];
  for (const line of coordinates) {
    const out = [];
    let x = 0, y = 0;
    for (const [lon, lat] of line) {
      const px = Math.round(lon * STEPS), py = Math.round(lat * STEPS);
      if (!out.length) out.push(px, py);
      else if (px !== x || py !== y) out.push(px - x, py - y);
      else continue;
      x = px;
      y = py;
    }
    if (out.length >= shortest) found.push(out);
  }
  return found;
};
const eased = (topology, weight) => simplify(presimplify(topology), weight);

const land = eased(read("world-atlas/land-50m.json"), 0.004);
const countries = eased(read("world-atlas/countries-50m.json"), 0.004);
const states = eased(read("us-atlas/states-10m.json"), 0.002);
const rings = feature(land, land.objects.land).features.flatMap((one) => (one.geometry.type === "Polygon" ? [one.geometry.coordinates] : one.geometry.coordinates)).flat();
process.stdout.write(JSON.stringify({
  steps: STEPS,
  land: lines(rings, 8),
  countries: lines(mesh(countries, countries.objects.countries, (a, b) => a !== b).coordinates, 4),
  states: lines(mesh(states, states.objects.states, (a, b) => a !== b).coordinates, 4),
}));
