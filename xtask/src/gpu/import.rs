//! Files the results of a run: `bench/gpu/DATE-DEVICE.json`, `.txt`, `.log`, flat. Where the bundle
//! and the results lay on the other machine is left out: it says nothing here.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use super::results::{self, Results};

/// The file of measured plans, which not every run leaves.
const PLANS: &str = "gemm-plans.json";
const BASELINE: &str = "baseline.json";

pub(super) fn run(folder: &Path, to: &Path, baseline: bool) -> Result<()> {
    for path in file(folder, to, baseline)? {
        println!("{}", path.display());
    }
    let results = results::read(folder)?;
    println!(
        "{} of commit {}: {}",
        results.run.device.as_deref().unwrap_or("no GPU"),
        results.run.commit,
        results.summary()
    );
    compare(&results, &to.join(BASELINE))
}

/// Copies results, after all of them have been read. The files made.
pub(super) fn file(folder: &Path, to: &Path, baseline: bool) -> Result<Vec<PathBuf>> {
    let results = results::read(folder)?;
    if baseline {
        ensure!(
            results.run.target == "gpu",
            "a run without a GPU cannot be a baseline"
        );
        results.check_baseline(&super::parts())?;
    }
    let name = stem(&results)?;
    let folders = results.run.folders();
    let mut files = Vec::new();
    for (from, end) in [
        ("gpu.json", "json"),
        ("table.txt", "txt"),
        ("log.txt", "log"),
        (PLANS, PLANS),
    ] {
        if from == PLANS && !folder.join(from).exists() {
            continue;
        }
        let path = to.join(format!("{name}.{end}"));
        ensure!(!path.exists(), "{} is there already", path.display());
        let text = results::text(folder, from)?;
        let hide = |text: String, (of, name): &(String, &str)| text.replace(of.as_str(), name);
        files.push((path, folders.iter().fold(text, hide)));
    }
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut made = Vec::new();
    for (path, text) in files {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        made.push(path);
    }
    if baseline {
        let path = to.join(BASELINE);
        let figures: BTreeMap<String, _> = figures(&results)
            .map(|(name, value, unit)| (name, json!({"value": value, "unit": unit})))
            .collect();
        let text = json!({"run": name, "figures": figures});
        fs::write(&path, serde_json::to_vec_pretty(&text)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        made.push(path);
    }
    Ok(made)
}

/// Returns the name of a run's files, such as `2026-11-22-1405-nvidia-h200`: from the run's own
/// words, which come from another machine.
fn stem(results: &Results) -> Result<String> {
    let date = &results.run.date;
    let plain = |part: Option<&str>, len: usize| {
        part.filter(|p| p.len() == len && p.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
            .map(str::to_owned)
    };
    let day = plain(date.get(..10), 10);
    let minute = date.get(11..16).map(|time| time.replace(':', ""));
    let (Some(day), Some(minute)) = (day, plain(minute.as_deref(), 4)) else {
        bail!("`{date}` is no date such as 2026-11-22T14:05:00Z");
    };
    let device = results.run.device.as_deref().unwrap_or("no-gpu");
    let device = device.split(',').next().unwrap_or_default().to_lowercase();
    let device: String = device
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(40)
        .collect();
    Ok(format!("{day}-{minute}-{}", device.trim_matches('-')))
}

/// Returns the names, values and units of figures.
fn figures(results: &Results) -> impl Iterator<Item = (String, f64, &str)> {
    let all = results.results.iter();
    all.filter_map(|r| Some((format!("{}: {}", r.part, r.name), r.value?, r.unit.as_str())))
}

/// Says which figures moved by more than a twentieth since the baseline.
fn compare(results: &Results, baseline: &Path) -> Result<()> {
    let Ok(text) = fs::read(baseline) else {
        println!("there is no baseline to compare with; --baseline makes this run one");
        return Ok(());
    };
    let document: serde_json::Value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no baseline", baseline.display()))?;
    let run = document["run"].as_str().unwrap_or_default();
    if !is_same_device(run, &stem(results)?) {
        println!("{run}, the baseline, is of another GPU: nothing is compared");
        return Ok(());
    }
    let (mut same, mut moved) = (0, 0);
    for (name, value, unit) in figures(results) {
        let Some(before) = document["figures"][&name]["value"].as_f64() else {
            continue;
        };
        let ratio = value / before;
        if (0.95..=1.05).contains(&ratio) {
            same += 1;
        } else {
            moved += 1;
            println!("{ratio:6.2}x  {name}: {before:.4} to {value:.4} {unit}");
        }
    }
    println!("against {run}: {moved} moved, {same} did not");
    Ok(())
}

/// Returns true if two [`stem`]s end in the same GPU's name.
fn is_same_device(a: &str, b: &str) -> bool {
    const DATE: usize = "2026-11-22-1405-".len();
    a.get(DATE..)
        .is_some_and(|device| b.get(DATE..) == Some(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for each test, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("gpu-import-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join(name), text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn results(date: &str, target: &str, part: &str) -> String {
        let done = json!({"state": "done", "why": null});
        let names = crate::gpu::parts().into_iter();
        let parts: BTreeMap<_, _> = names.map(|name| (name, &done)).collect();
        json!({
            "schema": 1,
            "run": {"date": date, "target": target, "device": "NVIDIA H200, and more", "commit": "c"},
            "parts": parts,
            "results": [
                {"part": part, "name": "copy", "verdict": "NOTE", "value": 4.2, "unit": "TB/s"},
                {"part": part, "name": "launch", "verdict": "PASS", "value": null},
            ],
        })
        .to_string()
    }

    const DATE: &str = "2026-11-22T14:05:33Z";

    /// Returns the error of filing a folder with this `gpu.json`.
    fn refused(name: &str, json: Option<&str>, baseline: bool) -> String {
        let (from, to) = (
            Folder::new(&format!("{name}-from")),
            Folder::new(&format!("{name}-to")),
        );
        if let Some(json) = json {
            from.write("gpu.json", json);
        }
        from.write("table.txt", "t");
        let error = file(&from.0, &to.0, baseline).unwrap_err();
        assert_eq!(fs::read_dir(&to.0).unwrap().count(), 0, "nothing is filed");
        format!("{error:#}")
    }

    #[test]
    fn runs_of_one_gpu_are_compared() {
        let baseline = "2026-11-22-1405-nvidia-h200";
        assert!(is_same_device(baseline, "2026-11-23-0501-nvidia-h200"));
        assert!(!is_same_device(baseline, "2026-11-23-0540-nvidia-h100"));
        assert!(!is_same_device("", ""));
    }

    #[test]
    fn results_are_filed_by_date_and_device_once() {
        let (from, to) = (Folder::new("ok-from"), Folder::new("ok-to"));
        from.write("gpu.json", &results(DATE, "gpu", "env"));
        from.write("table.txt", "t");
        from.write("log.txt", "l");
        let made = file(&from.0, &to.0, true).unwrap();
        let names: Vec<_> = made
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        let stem = "2026-11-22-1405-nvidia-h200";
        let expected = ["json", "txt", "log"].map(|end| format!("{stem}.{end}"));
        assert_eq!(names[..3], expected);
        assert_eq!(names[3], BASELINE);
        let again = file(&from.0, &to.0, false).unwrap_err().to_string();
        assert!(again.contains("is there already"), "{again}");
        run(&from.0, &Folder::new("ok-other").0, false).unwrap();
    }

    #[test]
    fn folders_of_the_other_machine_are_not_filed() {
        let (from, to) = (Folder::new("paths-from"), Folder::new("paths-to"));
        let command = "run --home /a/bundle --out /a --seconds 5 --models /b/m";
        let json = results(DATE, "gpu", "env");
        let run = format!(r#""commit":"c","command":"{command}""#);
        from.write("gpu.json", &json.replacen(r#""commit":"c""#, &run, 1));
        from.write("table.txt", "plans: 120 in /b/m/kernel-cache");
        from.write("log.txt", "images /a/bundle/images, results /a/log.txt");
        let made = file(&from.0, &to.0, false).unwrap();
        let text: Vec<_> = made
            .iter()
            .map(|p| fs::read_to_string(p).unwrap())
            .collect();
        assert!(text[0].contains("run --home BUNDLE --out OUT --seconds 5 --models MODELS"));
        assert_eq!(text[1], "plans: 120 in MODELS/kernel-cache");
        assert_eq!(text[2], "images BUNDLE/images, results OUT/log.txt");
    }

    #[test]
    fn malformed_folders_are_refused_with_the_reason() {
        let good = results(DATE, "gpu", "env");
        let check = |name, json: Option<&str>, reason: &str| {
            let said = refused(name, json, false);
            assert!(said.contains(reason), "{name}: {said}");
        };
        check("none", None, "no gpu.json");
        check(
            "cut",
            Some(&good[..good.len() / 2]),
            "not what gpu-check writes",
        );
        check("other", Some("{}"), "not what gpu-check writes");
        check(
            "schema",
            Some(&good.replace(r#""schema":1"#, r#""schema":9"#)),
            "format 9",
        );
        check(
            "orphan",
            Some(&results(DATE, "gpu", "nonsense")),
            "which did not run",
        );
        check(
            "date",
            Some(&results("../../../etc", "gpu", "env")),
            "no date",
        );
        check("log", Some(&good), "no log.txt");
        let nowhere = file(Path::new("no-such-folder"), Path::new("x"), false);
        assert!(nowhere.unwrap_err().to_string().contains("is no folder"));
    }

    #[test]
    fn a_baseline_is_of_a_gpu() {
        let emulated = results(DATE, "emulated", "env");
        assert!(refused("emulated", Some(&emulated), true).contains("without a GPU"));
    }

    #[test]
    fn a_baseline_is_of_a_whole_run_of_a_commit() {
        let good = results(DATE, "gpu", "env");
        let check = |name, old: &str, new: &str, reason: &str| {
            assert!(good.contains(old));
            let said = refused(name, Some(&good.replacen(old, new, 1)), true);
            assert!(said.contains(reason), "{name}: {said}");
        };
        check("failed", "NOTE", "FAIL", "failures");
        check("unchecked", "PASS", "SKIP", "nothing was checked");
        check("changed", r#""commit":"c""#, r#""commit":"c+""#, "`c+`");
        check(
            "unknown",
            r#""commit":"c""#,
            r#""commit":"unknown""#,
            "`unknown`",
        );
        check("killed", "done", "killed", "is killed");
        check(
            "missing",
            r#""gemm":"#,
            r#""gems":"#,
            "part gemm did not run",
        );
    }

    /// Carried results may name any file of this machine.
    #[test]
    fn links_are_not_followed() {
        let (from, to) = (Folder::new("link-from"), Folder::new("link-to"));
        let other = Folder::new("link-other");
        other.write("gpu.json", &results(DATE, "gpu", "env"));
        from.write("table.txt", "t");
        let link = |name: &str| {
            std::os::unix::fs::symlink(other.0.join("gpu.json"), from.0.join(name)).unwrap();
            let error = file(&from.0, &to.0, false).unwrap_err();
            assert!(
                format!("{error:#}").contains("no file"),
                "{name}: {error:#}"
            );
            assert_eq!(fs::read_dir(&to.0).unwrap().count(), 0);
        };
        link("gpu.json");
        fs::remove_file(from.0.join("gpu.json")).unwrap();
        from.write("gpu.json", &results(DATE, "gpu", "env"));
        link("log.txt");
    }

    #[test]
    fn a_walk_must_end_well_in_every_part() {
        let read = |text: &str| serde_json::from_str::<Results>(text).unwrap();
        let good = results(DATE, "emulated", "env");
        assert!(read(&good).check_smoke(&["env"]).is_ok());
        assert!(read(&good).check_smoke(&["env", "other"]).is_err());
        assert!(
            read(&good.replace("PASS", "FAIL"))
                .check_smoke(&["env"])
                .is_err()
        );
        assert!(
            read(&good.replace("PASS", "SKIP"))
                .check_smoke(&["env"])
                .is_err()
        );
        assert!(
            read(&good.replace("done", "killed"))
                .check_smoke(&["env"])
                .is_err()
        );
    }
}
