"""What is wrong with the layout of a page that a browser shows: text that overlaps, is cut off, too
small or too faint, and a page that is wider than the screen."""

from __future__ import annotations

from tests.services.browser import Browser

LEAST_PX = 11.0
LEAST_CONTRAST = 4.5
"""Of text (WCAG 2.2, 1.4.3)."""

_SCRIPT = """
(() => {
  const found = [], LEAST_PX = %(size)s, LEAST_CONTRAST = %(contrast)s, SLACK = 1.5;
  document.querySelectorAll('details').forEach(one => { one.open = true; });
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const short = text => text.trim().replace(/\\s+/g, ' ').slice(0, 60);
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width)
    found.push(`the page is ${document.documentElement.scrollWidth} px wide, the screen ${width}`);
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, words = short(node.data);
    if (!words || element.closest('title, style')) continue;
    if (!element.checkVisibility({visibilityProperty: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let rects = [...range.getClientRects()].filter(r => r.width > 0.5 && r.height > 0.5);
    if (element instanceof SVGElement) rects = [element.getBoundingClientRect()];
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    if (size < LEAST_PX) found.push(`text of ${size} px: ${words}`);
    const ink = light(rgb(element instanceof SVGElement ? style.fill : style.color));
    const paper = light(ground(element));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < LEAST_CONTRAST) found.push(`contrast ${contrast.toFixed(2)}: ${words}`);
    let scroller = null;
    for (let one = element; one && one !== document.body; one = one.parentElement) {
      const overflow = getComputedStyle(one).overflowX;
      if (overflow === 'auto' || overflow === 'scroll') { scroller = one; break; }
      if (overflow === 'hidden' || overflow === 'clip') {
        const frame = one.getBoundingClientRect();
        if (rects.some(r => r.left < frame.left - SLACK || r.right > frame.right + SLACK))
          found.push(`cut off: ${words}`);
      }
    }
    const frame = scroller && scroller.getBoundingClientRect();
    for (const r of rects) {
      if (!scroller && (r.left < -SLACK || r.right > width + SLACK))
        found.push(`outside of the screen: ${words}`);
      if (scroller && r.right + scroller.scrollLeft - frame.left > scroller.scrollWidth + SLACK)
        found.push(`outside of its table: ${words}`);
      const box = element.closest('dd, dt, td, th, li, p, pre, h1, h2, h3, label');
      if (box) {
        const b = box.getBoundingClientRect();
        if (r.right > b.right + SLACK || r.bottom > b.bottom + SLACK + 3)
          found.push(`outside of its box: ${words}`);
      }
      const left = frame ? Math.max(r.left, frame.left) : r.left;
      const right = frame ? Math.min(r.right, frame.right) : r.right;
      const isFixed = element.closest('.named th:first-child, .named td:first-child');
      if (right - left > 1 && !(scroller && isFixed))
        texts.push({node, words, left, right, top: r.top, bottom: r.bottom});
    }
  }
  texts.sort((a, b) => a.top - b.top);
  for (let i = 0; i < texts.length; i++) {
    for (let j = i + 1; j < texts.length && texts[j].top < texts[i].bottom - SLACK; j++) {
      const [a, b] = [texts[i], texts[j]];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (a.node !== b.node && across > SLACK && down > 3)
        found.push(`overlap: "${a.words}" and "${b.words}"`);
    }
  }
  return [texts.length, [...new Set(found)]];
})()
"""


def layout_problems(page: Browser) -> tuple[int, list[str]]:
    """Return the number of pieces of text that the page shows, and what is wrong with them."""
    count, found = page.run(_SCRIPT % {"size": LEAST_PX, "contrast": LEAST_CONTRAST})
    return int(count), [str(one) for one in found]
