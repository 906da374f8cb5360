// The box in which a chapter's program runs: its options, Run, Stop, its lines, a curve while it trains, its pictures.
(() => {
  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const svg = (tag, attributes) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
    return node;
  };

  // Progress as the programs show it on a terminal: "adam  epoch 1.25  loss 0.312 ...". One curve for each first word.
  const progress = /^\s*(\S.*?)?\s*epoch ([\d.]+)\s+loss ([\d.]+)/;
  const colours = ['#1f77b4', '#d6702a', '#2a9d5c', '#a0459b', '#888'];

  class Curve {
    constructor(place) { this.place = place; this.lines = new Map(); }
    add(name, x, y) {
      if (!this.lines.has(name)) this.lines.set(name, []);
      this.lines.get(name).push([x, y]);
      this.draw();
    }
    draw() {
      const all = [...this.lines.values()].flat(), W = 720, H = 250, L = 44, B = 30, T = 28;
      const most = Math.max(...all.map(p => p[0])), high = Math.max(...all.map(p => p[1])) * 1.05;
      const x = v => L + (W - L - 90) * v / most, y = v => H - B - (H - B - T) * v / high;
      const root = svg('svg', { viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'training loss by epoch' });
      const label = (s, at, props) => { const t = svg('text', { x: at[0], y: at[1], fill: 'currentColor', ...props }); t.textContent = s; root.append(t); };
      for (let k = 0; k <= 4; ++k) {
        const v = high * k / 4;
        root.append(svg('line', { x1: L, x2: W - 90, y1: y(v), y2: y(v), stroke: 'currentColor', 'stroke-opacity': .15 }));
        label(v.toFixed(1), [L - 6, y(v) + 4], { 'text-anchor': 'end' });
      }
      label('0', [x(0), H - 10], { 'text-anchor': 'middle' });
      label(most.toFixed(2), [x(most), H - 10], { 'text-anchor': 'middle' });
      label('epochs', [(x(0) + x(most)) / 2, H - 10], { 'text-anchor': 'middle' });
      label('training loss', [6, 14], {});
      // names stand at their lines' ends, from the highest down, each at least a line below the one before
      const ends = [...this.lines].map(([name, points], k) => ({ name, points, colour: colours[k % colours.length], end: points[points.length - 1] }));
      ends.sort((a, b) => y(a.end[1]) - y(b.end[1]));
      let free = 0;
      for (const { name, points, colour, end } of ends) {
        root.append(svg('polyline', { points: points.map(p => x(p[0]) + ',' + y(p[1])).join(' '), fill: 'none', stroke: colour, 'stroke-width': 2 }));
        const at = Math.max(free, y(end[1]) + 4);
        free = at + 13;
        label(name, [x(end[0]) + 6, at], { fill: colour });
      }
      this.place.replaceChildren(root);
    }
  }

  function box(section) {
    const program = section.dataset.program;
    const options = make('input', { type: 'text', value: section.dataset.options, spellcheck: false, ariaLabel: 'options' });
    const go = make('button', { type: 'button', className: 'go', textContent: 'Run' });
    const stop = make('button', { type: 'button', textContent: 'Stop', disabled: true });
    const help = make('button', { type: 'button', textContent: '--help' });
    const status = make('span', { className: 'status' });
    const lines = make('pre', { hidden: true }), curve = make('div'), shown = make('div', { className: 'pictures' });
    const drop = make('div', { className: 'drop', textContent: 'It draws its own digits. For your own data, drop the four IDX files of MNIST or Fashion-MNIST here (unpacked), or ' });
    const choose = make('input', { type: 'file', multiple: true, ariaLabel: 'data files' });
    drop.append(choose);
    section.append(make('div', { className: 'line' }, make('code', { textContent: './' + program }), options, go, stop, help, status), drop, curve, lines, shown);
    if (location.protocol === 'file:') {
      go.disabled = help.disabled = true;
      status.textContent = 'Browsers run no program from a file. In this folder: python3 -m http.server, then open http://localhost:8000/' + program + '.html';
      return;
    }

    const files = new Map();
    async function take(list) {
      for (const f of list) files.set(f.name, new Uint8Array(await f.arrayBuffer()));
      if (files.size) drop.firstChild.data = 'Takes ' + [...files.keys()].join(', ') + ' ';
      if (files.size) options.value = options.value.replace(/--data synthetic ?/, '');
    }
    drop.ondragover = e => { e.preventDefault(); drop.classList.add('over'); };
    drop.ondragleave = () => drop.classList.remove('over');
    drop.ondrop = e => { e.preventDefault(); drop.classList.remove('over'); take(e.dataTransfer.files); };
    choose.onchange = () => take(choose.files);

    let worker = null;
    function end(text, code) {
      worker?.terminate();
      worker = null;
      go.disabled = help.disabled = false;
      stop.disabled = true;
      status.textContent = text;
      section.dataset.exit = code;
    }
    function start(args) {
      lines.hidden = false;
      lines.replaceChildren();
      curve.replaceChildren();
      shown.replaceChildren();
      delete section.dataset.exit;
      go.disabled = help.disabled = true;
      stop.disabled = false;
      status.textContent = 'runs …';
      const from = performance.now(), seconds = () => ((performance.now() - from) / 1000).toFixed(1) + ' s';
      const growing = new Curve(curve);
      let errors = '';
      const print = (text, kind) => {
        const follow = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
        lines.append(kind ? make('span', { className: kind, textContent: text }) : text);
        if (follow) lines.scrollTop = lines.scrollHeight;
      };
      worker = new Worker('worker.js', { type: 'module' });
      worker.onerror = e => end('The program could not be started: ' + (e.message || 'no worker'), -1);
      worker.onmessage = ({ data }) => {
        if (data.out !== undefined) print(data.out);
        if (data.err !== undefined) {
          errors += data.err;
          // progress ends with a carriage return, a message with a newline
          for (let at; (at = errors.search(/[\r\n]/)) >= 0; errors = errors.slice(at + 1)) {
            const line = errors.slice(0, at), m = progress.exec(line);
            if (m) growing.add(m[1] || program, +m[2], +m[3]);
            else if (errors[at] === '\n' && line.trim()) print(line + '\n', 'err');
          }
        }
        if (data.error !== undefined) end(data.error, -1);
        if (data.exit === undefined) return;
        for (const [name, bytes] of data.pictures)
          shown.append(make('img', { src: URL.createObjectURL(new Blob([bytes], { type: 'image/png' })), alt: name, title: name }));
        end(data.exit === 0 ? 'ended after ' + seconds() : 'ended with code ' + data.exit + ' after ' + seconds(), data.exit);
      };
      worker.postMessage({ program, args, files: [...files] });
    }
    const words = s => (s.match(/"[^"]*"|\S+/g) ?? []).map(w => w.replace(/^"|"$/g, ''));
    go.onclick = () => start(words(options.value));
    help.onclick = () => start(['--help']);
    options.onkeydown = e => { if (e.key === 'Enter' && !go.disabled) go.click(); };
    stop.onclick = () => end('stopped', -2);
  }
  document.querySelectorAll('section.run').forEach(box);
})();
