// Dark or light, the search over PAGES (pages.js), and the glossary's words at their first use on a page.
(() => {
  const up = document.body.dataset.up, root = document.documentElement;
  document.getElementById('theme').onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    localStorage.setItem('theme', root.dataset.theme);
  };

  const box = document.getElementById('search'), found = document.getElementById('found');
  const text = (tag, s) => Object.assign(document.createElement(tag), { textContent: s });
  function search() {
    const words = box.value.toLowerCase().split(/\s+/).filter(w => w.length > 1);
    found.hidden = words.length === 0;
    if (found.hidden) return;
    const hits = [];
    for (const page of PAGES) {
      const heading = (page.n + ' ' + page.h).toLowerCase(), body = page.t.toLowerCase();
      if (!words.every(w => heading.includes(w) || body.includes(w))) continue;
      hits.push([words.filter(w => heading.includes(w)).length, page, Math.max(0, body.indexOf(words.find(w => body.includes(w)) ?? ''))]);
    }
    hits.sort((a, b) => b[0] - a[0]);
    found.replaceChildren(...hits.slice(0, 20).map(([, page, at]) => {
      const a = text('a', page.h === page.n || !page.h ? page.n : page.n + ' · ' + page.h);
      a.href = up + page.p + (page.a ? '#' + page.a : '');
      a.append(text('small', page.t.slice(Math.max(0, at - 50), at + 110)));
      a.onclick = () => { found.hidden = true; };
      return a;
    }), ...(hits.length ? [] : [text('p', 'Nothing has all of these words.')]));
  }
  box.oninput = search;
  box.onkeydown = e => {
    if (e.key === 'Escape') { box.value = ''; search(); }
    if (e.key === 'Enter') found.querySelector('a')?.click();
  };

  // each word of the glossary, the first time that a paragraph of this page says it
  if (document.body.dataset.here !== 'glossary.html' && typeof GLOSSARY !== 'undefined' && GLOSSARY.length) {
    const open = new Map(GLOSSARY.map(([word, anchor, meaning]) => [word.toLowerCase(), [anchor, meaning]]));
    // a capital only where the glossary has one: p, a probability, is not P, the number of ranks
    const written = w => w.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/^[a-z]/, c => `[${c}${c.toUpperCase()}]`);
    const words = GLOSSARY.map(([word]) => word).sort((a, b) => b.length - a.length).map(written);
    const any = new RegExp('\\b(' + words.join('|') + ')(?:s|es)?\\b');
    for (const p of document.querySelectorAll('main > p, main > ul > li')) {
      const walk = document.createTreeWalker(p, NodeFilter.SHOW_TEXT, n => n.parentElement.closest('a, code, .word') ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
      for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const m = any.exec(node.data);
        if (!m || !open.has(m[1].toLowerCase())) continue;
        const [anchor, meaning] = open.get(m[1].toLowerCase());
        open.delete(m[1].toLowerCase());
        const rest = node.splitText(m.index), a = text('a', m[0]);
        rest.data = rest.data.slice(m[0].length);
        a.className = 'word';
        a.href = up + 'glossary.html#' + anchor;
        a.title = meaning;
        rest.before(a);
        walk.currentNode = a;
      }
    }
  }
})();
