// Refreshes a page: fetches it again, and takes what is marked with data-live from the answer.
"use strict";
(() => {
  const every = Number(document.documentElement.dataset.everyMs);
  const longestMs = 60000;
  const connection = document.getElementById("connection");
  let newest = new Date();
  let isAsking = false;

  function isSelecting() {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed;
  }

  function take(page) {
    const focused = document.activeElement?.getAttribute("href");
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (fresh && fresh.innerHTML !== old.innerHTML) {
        const open = [...old.querySelectorAll("details")].map((one) => one.open);
        const place = [...old.querySelectorAll(".wide")].map((one) => one.scrollLeft);
        old.replaceChildren(...fresh.childNodes);
        old.querySelectorAll("details").forEach((one, n) => { one.open = open[n] ?? one.open; });
        old.querySelectorAll(".wide").forEach((one, n) => { one.scrollLeft = place[n] ?? 0; });
      }
    }
    if (focused && document.activeElement === document.body) {
      document.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
    }
  }

  async function refresh() {
    if (document.hidden || isAsking || isSelecting()) return;
    isAsking = true;
    try {
      const signal = AbortSignal.timeout(Math.max(every, longestMs));
      const answer = await fetch(location.href, { cache: "no-store", redirect: "error", signal });
      if (answer.status === 401) {
        throw new Error("the server has another token now: open the address that it printed");
      }
      if (!answer.ok) throw new Error(`the server answered with status ${answer.status}`);
      take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      newest = new Date();
      connection.hidden = true;
    } catch (error) {
      const isSilent = error instanceof TypeError || error.name === "TimeoutError";
      const why = isSilent ? "the server does not answer" : error.message;
      connection.textContent = `Not refreshed since ${newest.toLocaleTimeString()}: ${why}.`;
      connection.hidden = false;
    } finally {
      isAsking = false;
    }
  }

  setInterval(refresh, every);
  document.addEventListener("visibilitychange", refresh);
})();
