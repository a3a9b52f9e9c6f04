"use strict";

// Every few seconds the page says what is so now. Only the parts that are marked live are
// replaced, so what a reader has typed stays, and what is open, focused or selected as well.
(() => {
	const every = 5000;
	const box = document.getElementById("refresh"), lost = document.getElementById("lost");
	const places = "a, button, summary, input";
	const home = (e) => e.closest("article") ?? e.closest("[data-live]");
	const name = (e) => [e.closest("[data-live]").dataset.live, home(e).querySelector("h3")?.textContent];
	const key = (details) => JSON.stringify([...name(details), details.dataset.key]);

	function replace(page) {
		const open = new Set([...document.querySelectorAll("[data-live] details[open]")].map(key));
		const focus = document.activeElement?.closest("[data-live]") ? document.activeElement : null;
		const at = focus && { name: JSON.stringify(name(focus)), index: [...home(focus).querySelectorAll(places)].indexOf(focus) };
		for (const part of document.querySelectorAll("[data-live]")) {
			part.replaceWith(page.querySelector(`[data-live="${part.dataset.live}"]`));
		}
		for (const details of document.querySelectorAll("[data-live] details")) {
			details.open = open.has(key(details));
		}
		if (at) {
			const of = [...document.querySelectorAll("[data-live], article")].find((e) => JSON.stringify(name(e)) === at.name);
			of?.querySelectorAll(places)[at.index]?.focus({ preventScroll: true });
		}
		document.title = page.title;
	}

	async function refresh() {
		if (!box.checked || document.hidden || !getSelection().isCollapsed) {
			return;
		}
		try {
			const answer = await fetch(location.href, { signal: AbortSignal.timeout(10000) });
			const page = new DOMParser().parseFromString(await answer.text(), "text/html");
			if (page.getElementById("refresh") === null) {
				throw new Error("another page");
			}
			replace(page);
			lost.hidden = true;
		} catch {
			lost.hidden = false;
		}
	}

	const loop = () => refresh().finally(() => setTimeout(loop, every));
	box.parentElement.hidden = false;
	document.addEventListener("visibilitychange", refresh);
	setTimeout(loop, every);
})();
