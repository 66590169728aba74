//! An engine's process: reads orders from standard input, answers on standard output.
//!
//! Each engine has a process of its own, so that none inherits another's caches, allocator or
//! threads, and memory and processor time can be told apart.

use std::{
    fs, hint,
    io::{BufRead as _, Write as _, stdin, stdout},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    slice,
    sync::Barrier,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow, bail};
use cpu_time::ProcessTime;
use serde_json::{Value, json};

use crate::{
    engines::{Engine, Who, load},
    protocol::{Cost, Order, Reply, Work, read, write},
};

/// The state of the process between orders.
struct Worker {
    who: Who,
    threads: usize,
    engine: Option<Box<dyn Engine>>,
    texts: Vec<String>,
    ids: Vec<u32>,
}

/// Serves orders until standard input ends.
pub(crate) fn serve(who: Who, threads: usize) -> Result<()> {
    let mut worker = Worker {
        who,
        threads,
        engine: None,
        texts: Vec::new(),
        ids: Vec::new(),
    };
    for line in stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let reply: Reply = worker.obey(order).map_err(|error| format!("{error:#}"));
        let mut out = stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&reply)?)?;
        out.flush()?;
    }
    Ok(())
}

impl Worker {
    fn engine(&self) -> Result<&dyn Engine> {
        let engine = self.engine.as_deref();
        engine.ok_or_else(|| anyhow!("no tokenizer is loaded"))
    }

    fn obey(&mut self, order: Order) -> Result<Cost> {
        match order {
            Order::Load { path } => return self.load(Path::new(&path)),
            Order::Texts { path } => self.texts = read(Path::new(&path))?,
            Order::Ids { path } => self.ids = read(Path::new(&path))?,
            Order::Repeat { work, passes } => {
                let engine = self.engine()?;
                return measured(|| self.repeat(engine, work, passes));
            }
            Order::Share { threads, passes } => {
                return share(self.engine()?, &self.texts, threads, passes);
            }
            Order::Crowd { threads } => return crowd(self.engine()?, &self.texts, threads),
            Order::Answer { work, path } => {
                write(Path::new(&path), &self.answer(self.engine()?, work)?)?;
            }
        }
        Ok(Cost::default())
    }

    fn load(&mut self, path: &Path) -> Result<Cost> {
        self.engine = None;
        let rss_before = resident_bytes()?;
        let (who, threads) = (self.who, self.threads);
        let mut engine = None;
        let cost = measured(|| {
            engine = Some(load(who, path, threads)?);
            Ok(())
        })?;
        self.engine = engine;
        Ok(Cost {
            rss_before,
            rss_after: resident_bytes()?,
            ..cost
        })
    }

    fn repeat(&self, engine: &dyn Engine, work: Work, passes: u32) -> Result<()> {
        if !work.decodes() && work != Work::Batch {
            return encode_all(engine, &self.texts, passes);
        }
        let mut text = String::new();
        for _ in 0..passes {
            match work {
                Work::Batch => {
                    hint::black_box(engine.batch(&self.texts, self.threads)?);
                }
                Work::Decode => {
                    hint::black_box(engine.decode(&self.ids)?);
                }
                Work::Stream => {
                    text.clear();
                    engine.stream(&self.ids, &mut text)?;
                    hint::black_box(&text);
                }
                Work::Each => {
                    for id in &self.ids {
                        hint::black_box(engine.decode(slice::from_ref(id))?);
                    }
                }
                other => bail!("{other:?} is not repeated"),
            }
        }
        Ok(())
    }

    /// Returns a list of what the work makes of each text, or of the ids.
    fn answer(&self, engine: &dyn Engine, work: Work) -> Result<Value> {
        Ok(match work {
            Work::Decode => json!([engine.decode(&self.ids)?]),
            Work::Stream => {
                let mut text = String::new();
                engine.stream(&self.ids, &mut text)?;
                json!([text])
            }
            Work::Each => {
                let each = self.ids.iter().map(|id| engine.decode(slice::from_ref(id)));
                json!(each.collect::<Result<Vec<_>>>()?)
            }
            _ => {
                let mut lists = vec![Vec::new(); self.texts.len()];
                for (text, ids) in self.texts.iter().zip(&mut lists) {
                    engine.encode(text, ids)?;
                }
                json!(lists)
            }
        })
    }
}

fn encode_all(engine: &dyn Engine, texts: &[String], passes: u32) -> Result<()> {
    let mut out = Vec::new();
    for _ in 0..passes {
        for text in texts {
            engine.encode(hint::black_box(text), &mut out)?;
            hint::black_box(&out);
        }
    }
    Ok(())
}

/// Returns the time of `threads` threads that share the tokenizer. All threads are new, and have
/// encoded the texts once when the clock starts: a new thread beside an old one would be measured
/// by how it fills its cache.
fn share(engine: &dyn Engine, texts: &[String], threads: usize, passes: u32) -> Result<Cost> {
    let ready = Barrier::new(threads);
    let work = || {
        let warm = caught(|| encode_all(engine, texts, 1));
        ready.wait();
        let begin = Instant::now();
        warm.and_then(|()| encode_all(engine, texts, passes))?;
        Ok((begin, Instant::now()))
    };
    let cpu = ProcessTime::try_now()?;
    let spans: Vec<Result<(Instant, Instant)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|_| Err(anyhow!("a panic"))))
            .collect()
    });
    let spans = spans.into_iter().collect::<Result<Vec<_>>>()?;
    let begin = spans.iter().map(|(begin, _)| *begin).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    let (begin, end) = begin.zip(end).context("no thread was asked for")?;
    Ok(Cost {
        cpu_s: cpu.try_elapsed()?.as_secs_f64(),
        wall_s: end.duration_since(begin).as_secs_f64(),
        ..Cost::default()
    })
}

/// Turns a panic into an error: other threads at the barrier would wait for ever for the thread
/// that panicked.
fn caught(work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow!("a panic")))
}

/// Returns the memory that `threads` threads take which have all encoded the texts.
fn crowd(engine: &dyn Engine, texts: &[String], threads: usize) -> Result<Cost> {
    // The threads and the measuring thread wait for each other, before and after.
    let (ready, measured) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let rss_before = resident_bytes()?;
    let (done, rss_after) = std::thread::scope(|scope| {
        let work = || {
            let done = caught(|| encode_all(engine, texts, 1));
            ready.wait();
            measured.wait();
            done
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        ready.wait();
        let rss_after = resident_bytes();
        measured.wait();
        let mut joined = threads.into_iter().map(|thread| thread.join());
        let done = joined.try_for_each(|result| result.unwrap_or_else(|_| Err(anyhow!("a panic"))));
        (done, rss_after)
    });
    done?;
    Ok(Cost {
        rss_before,
        rss_after: rss_after?,
        ..Cost::default()
    })
}

fn measured(work: impl FnOnce() -> Result<()>) -> Result<Cost> {
    let (wall, cpu) = (Instant::now(), ProcessTime::try_now()?);
    work()?;
    Ok(Cost {
        cpu_s: cpu.try_elapsed()?.as_secs_f64(),
        wall_s: wall.elapsed().as_secs_f64(),
        ..Cost::default()
    })
}

/// Returns the resident memory of this process in bytes, from Linux; 0 where there is no such file.
fn resident_bytes() -> Result<u64> {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return Ok(0);
    };
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|l| l.trim().strip_suffix(" kB"));
    let kilobytes = kilobytes.ok_or_else(|| anyhow!("no VmRSS in /proc/self/status"))?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}
