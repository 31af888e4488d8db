'use strict';

// Where the page is: with or without a slash at its end.
const base = location.origin + location.pathname.replace(/\/*$/, '/');
const at = id => document.getElementById(id);
const DECIDERS = ['store', 'local', 'open', 'closed'];
// An operator of one process has no store.
const words = data => ({
  store: data.keys_held === null ? 'By the shared store' : 'In this process',
  local: 'By a share of this process',
  open: 'Not at all: admitted',
  closed: 'Not at all: refused',
});

// Text is only written where it differs, so that a screen reader or a selection stays where it is.
const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const attribute = (node, name, value) => { if (node.getAttribute(name) !== value) node.setAttribute(name, value); };
const show = (node, shown) => { if (node.hidden === shown) node.hidden = !shown; };
const number = n => n.toLocaleString('en');
const sum = list => list.reduce((all, n) => all + n, 0);
const last = list => list.length ? list[list.length - 1] : 0;
const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;

function percent(part, whole) {
  if (!whole) return '–';
  const share = 100 * part / whole;
  if (part && share < 0.1) return '< 0.1%';
  if (part < whole && share > 99.9) return '> 99.9%';
  return `${share.toLocaleString('en', { maximumFractionDigits: share < 10 ? 1 : 0 })}%`;
}

function duration(ms) {
  if (ms < 1000) return `${ms} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

function clock(ms) {
  const moment = new Date(ms);
  const time = moment.toLocaleTimeString('en-GB');
  if (Date.now() - ms < 86400000) return time;
  return `${moment.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })}, ${time}`;
}

// Rows are used again. Each gets a heading and cells of the given templates.
function rows(body, items, cells, fill) {
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach((item, n) => {
    if (!body.rows[n]) {
      body.append(at('row').content.cloneNode(true));
      for (const cell of cells) body.rows[n].append(at(cell).content.cloneNode(true));
    }
    fill([...body.rows[n].cells], item);
  });
}

function counts(cells, values) {
  values.forEach((value, n) => {
    cells[n + 1].className = 'count';
    write(cells[n + 1], value);
  });
}

function key(cell, item) {
  if (!cell.firstElementChild) cell.append(at('key').content.cloneNode(true));
  const [policy, digest, shown] = cell.children;
  write(policy, item.policy);
  const known = { all: ', all requests', missing: ', requests without a key' }[item.key];
  write(digest, known || item.key);
  digest.className = known ? 'known' : 'digest';
  write(shown, item.shown || '');
}

function bar(cell, text, part, whole) {
  write(cell.querySelector('.value'), text);
  const track = cell.querySelector('.track');
  track.classList.toggle('low', part * 10 <= whole);
  for (const node of [cell, track]) node.classList.toggle('empty', !part);
  cell.querySelector('.track span').style.width = `${whole ? Math.min(100, 100 * part / whole) : 0}%`;
}

// The next round number: a scale that stays while the numbers move.
function scale(most) {
  let unit = 1;
  while (unit * 10 < most) unit *= 10;
  return [1, 2, 3, 4, 5, 6, 8, 10].map(n => n * unit).find(n => n >= most);
}

const SECONDS = 120, HEIGHT = 60;

// One step a second, ending at the right edge, and nothing where nothing was.
function steps(list, zero, unit) {
  let path = '', open = false;
  list.forEach((n, second) => {
    if (n && !open) path += `M${SECONDS - list.length + second} ${zero}`;
    if (n) path += `V${(zero - n * unit).toFixed(2)}h1`;
    else if (open) path += `V${zero}`;
    open = n > 0;
  });
  return open ? `${path}V${zero}` : path;
}

function chart(figure, name, flow) {
  const [up, down] = [Math.max(0, ...flow.admitted), Math.max(0, ...flow.refused)];
  const [top, bottom] = [scale(up || 1), down ? scale(down) : 0];
  // Each direction has a scale of its own: in a flood of refusals the few that are admitted are seen, too.
  const zero = bottom ? HEIGHT / 2 : HEIGHT;
  const find = selector => figure.querySelector(selector);
  const refused = flow.audited ? 'would be refused' : 'refused';
  const now = `${number(last(flow.admitted))} admitted, ${number(last(flow.refused))} ${refused} a second`;
  write(find('.name'), name);
  write(find('.rates'), now);
  attribute(find('path.up'), 'd', steps(flow.admitted, zero, zero / top));
  attribute(find('path.down'), 'd', steps(flow.refused, zero, (zero - HEIGHT) / (bottom || 1)));
  attribute(find('path.zero'), 'd', `M0 ${zero}H${SECONDS}`);
  write(find('.top'), `${number(top)}/s admitted`);
  write(find('.bottom'), bottom ? `${number(bottom)}/s ${refused}` : '');
  show(find('.bottom'), bottom > 0);
  attribute(find('svg'), 'aria-label',
    `${name}: now ${now}. In the last two minutes at most ${number(up)} admitted and ${number(down)} ${refused} a second.`);
}

function charts(data) {
  const all = [{ name: 'All requests', ...data.requests }, ...data.policies];
  const place = at('charts');
  while (place.children.length > all.length) place.lastElementChild.remove();
  all.forEach((flow, n) => {
    if (!place.children[n]) place.append(at('chart').content.cloneNode(true));
    place.children[n].className = n ? '' : 'all';
    chart(place.children[n], flow.name, flow);
  });
}

let started, running, restarted, decider;

function tiles(data) {
  const [admitted, refused] = [sum(data.requests.admitted), sum(data.requests.refused)];
  write(at('admitted'), number(last(data.requests.admitted)));
  write(at('refused'), number(last(data.requests.refused)));
  const seconds = data.requests.admitted.length;
  const lately = seconds < SECONDS ? `in the last ${seconds} s` : 'in the last two minutes';
  write(at('admitted-note'), `${number(admitted)} ${lately}`);
  write(at('refused-note'), refused ? `${number(refused)} ${lately}: ${percent(refused, admitted + refused)}` : `none ${lately}`);

  const binding = data.policies.find(policy => policy.name === data.binding);
  write(at('binding'), binding ? binding.name : 'None');
  const first = binding ? binding.binding.refused : 0;
  write(at('binding-title'), first || !binding ? 'Limit that refuses most' : 'Limit closest to refusing');
  const note = first
    ? `${percent(first, sum(data.policies.map(policy => policy.binding.refused)))} of refusals ${lately}`
    : 'refuses nothing, has the least left';
  write(at('binding-note'), binding ? note : `no limit decided ${lately}`);

  const { now, changes } = data.decided_by;
  write(at('decider'), now ? words(data)[now] : 'Nothing yet');
  const why = changes.length && changes[0].why ? `, ${changes[0].why}` : '';
  write(at('decider-note'), changes.length ? `since ${clock(moment(data, changes[0]))}${why}` : '');
  attribute(at('decider-tile'), 'data-decider', now || '');
  if (decider && now && decider !== now) write(at('news'), `Limits are decided now: ${words(data)[now]}${why}.`);
  decider = now || decider;
}

const moment = (data, change) => started + (data.running_seconds - change.seconds_ago) * 1000;

function limits(data) {
  charts(data);
  const refused = sum(data.policies.map(policy => policy.binding.refused));
  rows(at('policies'), data.policies, ['cell', 'cell', 'cell'], (cells, policy) => {
    if (!cells[0].firstElementChild) cells[0].append(at('limit').content.cloneNode(true));
    write(cells[0].firstElementChild, policy.name);
    const tag = policy.audited ? 'audited: refuses nobody' : policy.binding.refused ? 'refuses most' : 'closest to refusing';
    write(cells[0].lastElementChild, tag);
    show(cells[0].lastElementChild, policy.audited || policy.name === data.binding);
    counts(cells, [number(sum(policy.admitted)), number(sum(policy.refused)), percent(policy.binding.refused, refused)]);
  });
}

// A row for each result, because a narrow window has no room for so many columns.
function candidates(data) {
  const all = ['both_admit', 'both_refuse', 'would_refuse', 'would_admit', 'not_decided'];
  const results = data.candidates.flatMap(candidate => all.map(result => ({ name: candidate.name, result, n: candidate[result] })));
  rows(at('candidates'), results, ['cell'], (cells, { name, result, n }) => {
    write(cells[0], `${name}: ${result.replace('_', ' ')}`);
    counts(cells, [number(n)]);
  });
  show(at('candidates-table'), results.length > 0);
}

function keys(data) {
  const same = (one, other) => one.policy === other.policy && one.key === other.key;
  rows(at('tightest'), data.tightest, ['bar-cell', 'cell'], (cells, item) => {
    key(cells[0], { ...item, ...data.offenders.find(other => same(item, other)) });
    bar(cells[1], `${number(item.left)} of ${number(item.of)}${item.left ? '' : ', used up'}`, item.left, item.of);
    cells[2].className = 'count';
    write(cells[2], duration(item.resets_in_ms));
  });
  show(at('tightest-table'), data.tightest.length > 0);
  show(at('tightest-none'), !data.tightest.length);

  const most = Math.max(0, ...data.offenders.map(item => item.refused));
  rows(at('offenders'), data.offenders, ['bar-cell'], (cells, item) => {
    key(cells[0], item);
    bar(cells[1], number(item.refused), item.refused, most);
  });
  show(at('offenders-table'), data.offenders.length > 0);
  show(at('offenders-none'), !data.offenders.length);
}

function decides(data) {
  const { decisions, changes } = data.decided_by;
  const all = sum(Object.values(decisions));
  for (const span of at('share').children) span.style.width = `${all ? 100 * decisions[span.className] / all : 0}%`;
  const parts = DECIDERS.filter(name => decisions[name]);
  const told = parts.map(name => `${words(data)[name]}: ${percent(decisions[name], all)}`).join(', ');
  write(at('share-text'), all ? `${told} of ${plural(all, 'decision', 'decisions')} in the last two minutes.`
    : 'Nothing was decided in the last two minutes.');

  const { answers, failures, slowest_ms } = data.store;
  const calls = answers || failures
    ? `Of ${plural(answers + failures, 'call', 'calls')} to the store, ${number(failures)} failed; the slowest answer took ${duration(slowest_ms)}.`
    : '';
  write(at('store'), data.keys_held === null ? calls : `${calls} ${plural(data.keys_held, 'key', 'keys')} in memory.`.trim());

  const list = at('changes'), items = changed(data);
  while (list.children.length > items.length) list.lastElementChild.remove();
  items.forEach((change, n) => {
    if (!list.children[n]) list.append(at('change').content.cloneNode(true));
    const [time, text] = list.children[n].children;
    write(time, clock(moment(data, change)));
    write(text, change.text);
  });
}

// What decides, and the rules, newest first.
function changed(data) {
  const deciders = data.decided_by.changes.map(({ seconds_ago, from, to, why }) => {
    const [before, now] = [words(data)[from], words(data)[to] + (why ? `, ${why}` : '')];
    return { seconds_ago, text: from ? `${before} → ${now}` : `${now}, with the first request` };
  });
  const rules = data.rules_changes.map(seconds_ago => ({ seconds_ago, text: 'The rules were replaced' }));
  return [...deciders, ...rules].sort((one, other) => one.seconds_ago - other.seconds_ago);
}

function waits(data) {
  const queues = data.policies.filter(policy => policy.queued || policy.longest_wait_ms);
  rows(at('queues'), queues, ['cell', 'cell'], (cells, policy) => {
    write(cells[0], policy.name);
    counts(cells, [number(policy.queued), duration(policy.longest_wait_ms)]);
  });
  rows(at('permits'), data.permits, ['cell', 'cell', 'cell'], (cells, permits) => {
    write(cells[0], permits.name);
    counts(cells, [permits.taken, permits.most_taken, permits.refused].map(number));
  });
  show(at('queues-table'), queues.length > 0);
  show(at('permits-table'), data.permits.length > 0);
  show(at('waits-none'), !queues.length && !data.permits.length);
}

function present(data) {
  if (running === undefined || data.running_seconds < running) {
    started = Date.now() - data.running_seconds * 1000;
    if (running !== undefined) restarted = started;
  }
  running = data.running_seconds;
  const service = data.service || location.host;
  write(at('service'), service);
  if (document.title !== `${service}: rate limits`) document.title = `${service}: rate limits`;
  const requests = sum(Object.values(data.outcomes));
  const notice = !data.reporting
    ? 'No layer reports to this page. Hand it to a layer with observe(…), and serve requests with that layer.'
    : 'No requests yet. This page fills when the first one arrives.';
  const filled = requests > 0;
  write(at('notice'), notice);
  show(at('notice'), !filled || !data.reporting);
  show(at('numbers'), filled);
  if (filled) for (const part of [tiles, limits, candidates, keys, decides, waits]) part(data);
  const since = `${plural(requests, 'request', 'requests')} since ${clock(started)} (${running < 60 ? `${running} s` : duration(running * 1000)}).`;
  write(at('since'), restarted ? `The server has restarted and counts from zero. ${since}` : since);
}

// The connection. What counts is when data came last: a stream ends now and then, and comes back within a second.
const LOST_AFTER = 3500, AGAIN_AFTER = 4000;
let source, paused = false, heard = Date.now(), tried = 0;

function state(name, text) {
  attribute(at('state'), 'data-state', name);
  write(at('state-text'), text);
  at('numbers').classList.toggle('stale', name === 'lost');
}

function connect() {
  disconnect();
  tried = Date.now();
  source = new EventSource(new URL('events', base));
  source.onmessage = event => {
    heard = tried = Date.now();
    state('live', 'Live');
    present(JSON.parse(event.data));
  };
}

function disconnect() {
  if (source) source.close();
  source = undefined;
}

// A browser gives up when a proxy answers for a server that restarts, and waits long for one that is gone.
setInterval(() => {
  if (paused || document.hidden) return;
  if (Date.now() - heard > LOST_AFTER) state('lost', `Reconnecting… No data since ${clock(heard)}.`);
  if (Date.now() - tried > AGAIN_AFTER) connect();
}, 500);

function follow() {
  if (paused || document.hidden) return disconnect();
  heard = Date.now();
  connect();
}

at('pause').addEventListener('click', () => {
  paused = !paused;
  attribute(at('pause'), 'aria-pressed', String(paused));
  state('wait', paused ? `Paused at ${clock(Date.now())}.` : 'Connecting…');
  follow();
});
// Browsers open few connections to one server, and a hidden page needs none.
document.addEventListener('visibilitychange', follow);
at('data').href = new URL('data.json', base);
follow();
