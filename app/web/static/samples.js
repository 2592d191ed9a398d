// The samples of the pipelines that are opened: the worker has ten minutes of them, and is asked for the new ones only.

export const RATES = ["records_in", "records_out", "bytes_in", "bytes_out"];

export const samples = { last: 0, kept: 0, everyS: 0, times: [], rates: new Map() };

export function forgetSamples() {
  Object.assign(samples, { last: 0, times: [], rates: new Map() });
}

// After which sample to ask, so that there are all for each of these pipelines.
export function askAfter(names) {
  return names.every((name) => samples.rates.has(name)) ? samples.last : 0;
}

// `after`: what was asked for.
export function keepSamples({ samples: found, pipelines }, after) {
  const joined = (before, now) => [...(after ? before : []), ...now].slice(-found.kept);
  const rates = pipelines.filter(({ card }) => card).map(({ name, card }) => [name, Object.fromEntries(
    RATES.map((each) => [each, joined(samples.rates.get(name)?.[each] ?? [], card.rates[each])]))]);
  const times = joined(samples.times, found.at_s);
  Object.assign(samples, { last: found.last, kept: found.kept, everyS: found.every_s, times, rates: new Map(rates) });
}
