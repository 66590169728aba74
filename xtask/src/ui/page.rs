//! The page's tabs, each used by keyboard and compared with what the server said.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread::scope,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::webdriver::Browser;
use crate::smoke;

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const SHIFT: char = '\u{e008}';
const CONTROL: char = '\u{e009}';
const RIGHT: char = '\u{e014}';
const DOWN: char = '\u{e015}';
const HOME: char = '\u{e011}';

/// The name of the tab that is shown.
const SHOWN: &str =
    "document.querySelector('[role=tab][aria-selected=true]').id.replace('tab-', '')";

/// Most presses of a key until something has the focus.
const PRESSES_MAX: usize = 40;

/// Keeps the headers of every response, beside the page's own script.
const RECORD: &str = "
    window.seen = [];
    const send = window.fetch;
    window.fetch = async (...asked) => {
        const response = await send(...asked);
        window.seen.push({ url: response.url, headers: Object.fromEntries(response.headers) });
        return response;
    };";

/// The page in a browser.
pub(super) struct Page<'b, 'd> {
    browser: &'b Browser<'d>,
}

impl<'b, 'd> Page<'b, 'd> {
    /// Opens the page of a server.
    pub(super) fn open(browser: &'b Browser<'d>, address: &str) -> Result<Self> {
        browser.go(&format!("http://{address}/ui"))?;
        browser.until(
            "the page says what is served",
            "document.getElementById('served').textContent.includes('demo-lm')",
        )?;
        browser.run(RECORD)?;
        let page = Self::at(browser);
        page.browser.type_text(&TAB.to_string())?;
        let first = browser.run("return document.activeElement.className")?;
        ensure!(
            first == "skip",
            "the first stop is {first}, and skips nothing"
        );
        Ok(page)
    }

    /// Returns the page that is open.
    pub(super) fn at(browser: &'b Browser<'d>) -> Self {
        Self { browser }
    }

    /// Writes a picture of the page.
    pub(super) fn shot(&self, file: &Path) -> Result<()> {
        self.browser.run("window.scrollTo(0, 0)")?;
        self.browser.shot(file)
    }

    fn focus(&self) -> Result<String> {
        let id = self.browser.run("return document.activeElement.id")?;
        Ok(id.as_str().unwrap_or_default().to_owned())
    }

    /// Moves the focus with the tab key.
    fn tab_to(&self, wanted: &str) -> Result<()> {
        for _ in 0..PRESSES_MAX {
            if self.focus()? == wanted {
                return Ok(());
            }
            self.browser.type_text(&TAB.to_string())?;
        }
        bail!("the tab key does not lead to #{wanted}")
    }

    /// Moves the focus back with shift and the tab key.
    fn tab_back_to(&self, wanted: &str) -> Result<()> {
        for _ in 0..PRESSES_MAX {
            if self.focus()? == wanted {
                return Ok(());
            }
            self.browser.chord(SHIFT, TAB)?;
        }
        bail!("shift and the tab key do not lead to #{wanted}")
    }

    /// Shows a tab by the arrow keys.
    pub(super) fn to_tab(&self, name: &str) -> Result<()> {
        let shown = || self.browser.run(&format!("return {SHOWN}"));
        let current = shown()?;
        self.tab_back_to(&format!("tab-{}", current.as_str().unwrap_or_default()))?;
        self.browser.type_text(&HOME.to_string())?;
        for _ in 0..4 {
            if shown()? == name {
                return Ok(());
            }
            self.browser.type_text(&RIGHT.to_string())?;
        }
        bail!("the arrow keys do not lead to {name}")
    }

    /// Asks the example's questions and compares the answers' headings with the response.
    pub(super) fn decide(&self) -> Result<()> {
        self.tab_to("state")?;
        self.browser.chord(CONTROL, ENTER)?;
        self.browser.until(
            "three answers",
            "document.querySelectorAll('#answers article').length === 3",
        )?;
        let said = self.browser.run(
            "return Array.from(document.querySelectorAll('#answers .said'), (e) => e.firstChild.textContent)",
        )?;
        ensure!(said[0] == "card", "{said}");
        let number = said[2].as_str().and_then(|text| text.parse::<f64>().ok());
        ensure!(
            number.is_some_and(|mean| (0.0..=2.0).contains(&mean)),
            "{said}"
        );
        let bars = self.browser.run(
            "return Array.from(document.querySelectorAll('#answers article'), (article) =>
               Array.from(article.querySelectorAll('.fill'), (e) => Number(e.getAttribute('width'))))",
        )?;
        for bars in bars.as_array().context("bars")? {
            let widths = bars.as_array().context("widths")?.iter();
            let sum: f64 = widths.filter_map(Value::as_f64).sum();
            ensure!(
                (sum - 100.0).abs() < 1e-6,
                "bars come to {sum}, not to the whole: {bars}"
            );
        }
        Ok(())
    }

    /// Adds a question of one's own, and removes it.
    pub(super) fn edit(&self) -> Result<()> {
        self.tab_to("add-question")?;
        self.browser.type_text(&ENTER.to_string())?;
        let count = "document.querySelectorAll('#questions > li').length";
        self.browser
            .until("a fourth question", &format!("{count} === 4"))?;
        let name = self.browser.run("return document.activeElement.value")?;
        ensure!(
            name == "question4",
            "the new question's name has the focus: {name}"
        );
        self.browser.type_text(&format!("{TAB}{TAB}{TAB}{ENTER}"))?;
        self.browser
            .until("three questions", &format!("{count} === 3"))
    }

    /// Returns the program that the page offers to copy.
    pub(super) fn copied(&self, language: &str) -> Result<String> {
        self.tab_to("ask")?;
        for _ in 0..PRESSES_MAX {
            self.browser.type_text(&TAB.to_string())?;
            let offers = self
                .browser
                .run("return document.activeElement.dataset.copy ?? ''")?;
            if offers == language {
                self.browser.type_text(&ENTER.to_string())?;
                self.browser.until(
                    "the program is shown",
                    "document.getElementById('copied').textContent !== ''",
                )?;
                let text = self
                    .browser
                    .run("return document.getElementById('code').textContent")?;
                self.tab_back_to("ask")?;
                return Ok(text.as_str().unwrap_or_default().to_owned());
            }
        }
        bail!("the tab key does not lead to a button that copies {language}")
    }

    /// Compares the drawn tree and its figures with the response's headers.
    pub(super) fn cost(&self) -> Result<()> {
        self.to_tab("cost")?;
        let shown = self
            .browser
            .run("return { ...document.getElementById('cost').dataset }")?;
        let headers = self.browser.run(
            "return window.seen.findLast(({ url }) => url.endsWith('/v1/systemone')).headers",
        )?;
        for name in ["prompt", "computed", "cached"] {
            let header = &headers[format!("x-prelude-{name}-tokens")];
            ensure!(
                shown[name] == *header,
                "{name}: {} is not {header}",
                shown[name]
            );
        }
        let drawn = self.browser.run(
            "const rects = Array.from(document.querySelectorAll('#forest-box rect[data-tokens]'));
             return rects.map((r) => [Number(r.dataset.tokens), Number(r.getAttribute('width'))])",
        )?;
        let drawn = drawn.as_array().context("a tree")?;
        let tokens: f64 = drawn.iter().filter_map(|bar| bar[0].as_f64()).sum();
        ensure!(
            shown["prompt"].as_str() == Some(&*tokens.to_string()),
            "the tree has {tokens} tokens: {shown}"
        );
        let scale: Vec<f64> = { drawn.iter() }
            .filter_map(|bar| Some(bar[1].as_f64()? / bar[0].as_f64()?))
            .collect();
        let is_to_scale = scale.iter().all(|s| (s - scale[0]).abs() < 1e-6);
        ensure!(
            is_to_scale && scale.len() >= 4,
            "it is not to scale: {scale:?}"
        );
        self.tab_to("separately")?;
        self.browser.type_text(&ENTER.to_string())?;
        self.browser.until(
            "the comparison",
            "document.querySelectorAll('#beside tbody tr').length === 2",
        )?;
        let computed = self.browser.run(
            "return Array.from(document.querySelectorAll('#beside tbody tr'), (row) =>
               Number(row.cells[2].textContent.replaceAll(',', '')))",
        )?;
        // Of the last round; tokens are the same in all rounds.
        let headers = self.browser.run(
            "return window.seen.filter(({ url }) => url.endsWith('/v1/systemone')).slice(-4)
               .map(({ headers }) => Number(headers['x-prelude-computed-tokens']))",
        )?;
        let sum: u64 = (1..4).filter_map(|at| headers[at].as_u64()).sum();
        ensure!(
            computed[0] == headers[0]
                && computed[1] == sum
                && computed[1].as_u64() > computed[0].as_u64(),
            "{computed} is not of {headers}"
        );
        Ok(())
    }

    /// Watches steps while requests run.
    pub(super) fn live(&self, address: &str) -> Result<()> {
        self.to_tab("live")?;
        self.browser.until(
            "it is live",
            "document.getElementById('live-state').textContent === 'Live'",
        )?;
        let last =
            "Number(document.querySelector('[data-model=demo-classifier]')?.dataset.step ?? -1)";
        let before = self.browser.run(&format!("return {last}"))?;
        let before = before.as_i64().unwrap_or(-1);
        let is_seen = AtomicBool::new(false);
        scope(|threads| {
            let asking = threads.spawn(|| -> Result<()> {
                while !is_seen.load(Ordering::Relaxed) {
                    smoke::classify(address, super::KEY)?;
                }
                Ok(())
            });
            let seen = self.browser.until(
                "steps are shown as they run",
                &format!("{last} > {}", before + 20),
            );
            is_seen.store(true, Ordering::Relaxed);
            let asked = asking.join();
            seen?;
            asked.map_err(|_| anyhow::anyhow!("the client panicked"))?
        })?;
        self.browser.until(
            "the times of requests are shown",
            "document.querySelector('[data-model=demo-classifier] .histogram rect')",
        )?;
        let bars = self.browser.run(
            "return document.querySelectorAll('[data-model=demo-classifier] .strip rect').length",
        )?;
        ensure!(
            (20..=200).contains(&bars.as_u64().unwrap_or(0)),
            "{bars} bars"
        );
        Ok(())
    }

    /// Classifies a text by the labels of one's own, or by a model's classes.
    pub(super) fn compare(&self) -> Result<()> {
        self.to_tab("compare")?;
        self.tab_to("classify-text")?;
        self.browser.type_text(&ENTER.to_string())?;
        let best = "document.querySelector('#classify-form .best th')?.textContent";
        self.browser
            .until("a class", &format!("{best} === 'card_arrival'"))?;
        self.tab_back_to("classify-model")?;
        let labels = "document.getElementById('classify-labels-field')";
        let had_labels = self.browser.run(&format!("return !{labels}.hidden"))?;
        ensure!(had_labels == false, "a classifier is offered first");
        // Without a model for a task the form says so.
        let unable = self.browser.run(
            "return Array.from(document.querySelectorAll('#view-compare .unable:not([hidden])'), (e) => e.textContent)",
        )?;
        let unable: Vec<&str> = unable
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        ensure!(
            unable
                .iter()
                .any(|text| text.starts_with("No served model embeds texts")),
            "{unable:?}"
        );
        // A language model takes labels of one's own.
        self.browser.type_text(&DOWN.to_string())?;
        self.browser
            .until("labels are asked for", &format!("!{labels}.hidden"))?;
        self.tab_to("classify-text")?;
        self.browser.type_text(&ENTER.to_string())?;
        let rows = "document.querySelectorAll('#classify-form .bars tr').length";
        self.browser
            .until("three labels", &format!("{rows} === 3"))?;
        self.browser
            .until("the best label", &format!("{best} === 'card_arrival'"))
    }
}
