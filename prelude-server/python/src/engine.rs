//! The classes `Engine` and `Call`: a model in service, and a request that was sent to it.

use std::{
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use prelude_engine::ScheduledEngine;
use prelude_server::{Answered, App, Asking, executor::Devices};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::{runtime::Runtime, task::JoinHandle};

use crate::{
    load::{self, Opened},
    options::Options,
    wait::{SIGNALS, wait},
};

/// An answer for Python: the status and the body.
type Answer<'py> = (u16, Bound<'py, PyBytes>);

/// A model in service: its handlers, the threads that they run on, and the engine.
struct Running {
    app: Arc<App>,
    devices: Devices,
    /// Taken as the value is dropped.
    parts: Option<(Runtime, ScheduledEngine)>,
    /// The process that has the threads.
    process: u32,
}

impl Running {
    fn runtime(&self) -> &Runtime {
        let (runtime, _) = self.parts.as_ref().expect("taken only when dropped");
        runtime
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some((runtime, engine)) = self.parts.take() else {
            return;
        };
        if self.process != process::id() {
            // A copy of a process has none of its threads, and would wait for them for ever.
            std::mem::forget((runtime, engine));
            return;
        }
        runtime.shutdown_background();
        drop(engine);
    }
}

/// A model in service, in this process. Requests are answered as by a server, without one.
#[pyclass(frozen, module = "prelude_serve._prelude_serve")]
pub(crate) struct Engine {
    running: Mutex<Option<Arc<Running>>>,
    /// The name of the model.
    #[pyo3(get)]
    name: String,
    /// The names of the model's classes; none of a model that has none of its own.
    #[pyo3(get)]
    labels: Vec<String>,
    /// The memory that the model was planned to take, in words.
    #[pyo3(get)]
    memory: String,
    /// Warnings about the model: tasks that it cannot do, files that may be old.
    #[pyo3(get)]
    warnings: Vec<String>,
}

impl Engine {
    fn running(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        // Valid between statements.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what answers requests.
    ///
    /// # Errors
    /// `ValueError` if it was closed, `RuntimeError` in a copy of its process.
    fn open(&self) -> PyResult<Arc<Running>> {
        let running = self.running().clone();
        let running = running.ok_or_else(|| PyValueError::new_err("this LLM was closed"))?;
        if running.process != process::id() {
            return Err(PyRuntimeError::new_err(
                "this LLM belongs to the process that this one was forked from, and its threads are \
                 there; make an LLM in each process (multiprocessing: start method \"spawn\")",
            ));
        }
        Ok(running)
    }
}

#[pymethods]
impl Engine {
    /// Loads a model. `options` is a JSON object. `report` is called with bytes, bytes in total, files
    /// and files in total while the model is downloaded. With `beside`, the model shares the threads
    /// of another engine.
    #[staticmethod]
    #[pyo3(signature = (options, report=None, beside=None))]
    fn load(
        py: Python<'_>,
        options: &str,
        report: Option<&Bound<'_, PyAny>>,
        beside: Option<&Self>,
    ) -> PyResult<Self> {
        let options = Options::read(options)?;
        let beside = beside.map(Self::open).transpose()?;
        let beside = beside.map(|running| running.devices.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // One alone: threads that wait run their own requests, and the engine computes on others.
            .worker_threads(1)
            .thread_name("prelude")
            .enable_all()
            .build()
            .map_err(|e| PyRuntimeError::new_err(format!("cannot start a thread: {e}")))?;
        let opened = *load::open(py, options, report, beside)?;
        let Opened {
            app,
            engine,
            devices,
            name,
            labels,
            memory,
            warnings,
        } = opened;
        let running = Running {
            app,
            devices,
            parts: Some((runtime, engine)),
            process: process::id(),
        };
        Ok(Self {
            running: Mutex::new(Some(Arc::new(running))),
            name,
            labels,
            memory,
            warnings,
        })
    }

    /// Answers a request: its status and its body. With `strict`, unknown fields are refused.
    #[pyo3(signature = (method, path, body, strict))]
    fn answer<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        path: &str,
        body: &[u8],
        strict: bool,
    ) -> PyResult<Answer<'py>> {
        let running = self.open()?;
        let body = Bytes::copy_from_slice(body);
        // This thread waits for the answer, and may as well compute it, unless signals would have to
        // wait for that.
        let inline = Some(SIGNALS / 2);
        let asking = Asking { strict, inline };
        let work = running.app.answer_as(asking, method, path, body);
        let answered = wait(py, running.runtime(), work)?;
        Ok(for_python(py, &answered))
    }

    /// Sends a request, whose answer is waited for later. If the call is dropped before, the request
    /// is aborted.
    #[pyo3(signature = (method, path, body, strict))]
    fn send(&self, method: String, path: String, body: &[u8], strict: bool) -> PyResult<Call> {
        let running = self.open()?;
        let (app, body) = (Arc::clone(&running.app), Bytes::copy_from_slice(body));
        let inline = None;
        let asking = Asking { strict, inline };
        let work = async move { app.answer_as(asking, &method, &path, body).await };
        let task = Task(running.runtime().spawn(work));
        Ok(Call {
            task: Mutex::new(Some(task)),
            running,
        })
    }

    /// Stops the engine when the requests that run have ended. A second time does nothing.
    fn close(&self, py: Python<'_>) {
        let running = self.running().take();
        py.detach(|| drop(running));
    }
}

fn for_python<'py>(py: Python<'py>, answered: &Answered) -> Answer<'py> {
    (answered.status, PyBytes::new(py, &answered.body))
}

/// A task that is aborted when nobody waits for it any more.
struct Task(JoinHandle<Answered>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A request that was sent.
#[pyclass(frozen, module = "prelude_serve._prelude_serve")]
pub(crate) struct Call {
    /// Taken by who waits for it.
    task: Mutex<Option<Task>>,
    running: Arc<Running>,
}

#[pymethods]
impl Call {
    /// Waits for the answer: its status and its body. Can be called once.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Answer<'py>> {
        let task = self.task.lock();
        let task = task.unwrap_or_else(PoisonError::into_inner).take();
        let mut task = task.ok_or_else(|| PyValueError::new_err("the answer was taken"))?;
        if self.running.process != process::id() {
            // Its thread is in another process.
            std::mem::forget(task);
            return Err(PyRuntimeError::new_err(
                "the request was sent by the process that this one was forked from",
            ));
        }
        let work = async { (&mut task.0).await };
        let answered = wait(py, self.running.runtime(), work)?;
        let answered =
            answered.map_err(|_| PyRuntimeError::new_err("the request failed by a defect"))?;
        Ok(for_python(py, &answered))
    }
}
