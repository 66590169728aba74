//! The resources that each kernel uses on each architecture, compared with
//! `kernels/resources.toml`.
//!
//! A spill or a stack frame fails, but for those in [`STACKS`], and so does any growth of registers or shared memory: both
//! cost occupancy, which no test without a GPU can see. Kernels on tensor cores must have tensor
//! core instructions, and no kernel may touch device memory byte by byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use prelude_kernels::{FAMILIES, Family};
use prelude_measure::table;
use serde::{Deserialize, Serialize};

use super::{build, compiler::Compiler};
use crate::run::{program, root};

/// Bytes of stack that a kernel may have, each by measurement; all others have none.
///
/// `attn_varlen` with 128 rows a block: some words of what its loop seldom needs, 8 bytes on sm_90.
/// On an H200 (2026-11-22, prompts of 2 × 4,096 tokens with Qwen3-4B's heads) it has 311 TFLOP/s
/// so, and 295 in a form that keeps maxima and sums in shared memory to have none.
const STACKS: &[(&str, u32)] = &[("prelude_attn_varlen_wide_128", 32)];

/// The resources of one kernel on one architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Use {
    registers: u32,
    /// Static shared memory of a block, bytes.
    shared: u32,
}

/// Kernel, architecture, use.
type Table = BTreeMap<String, BTreeMap<String, Use>>;

pub(super) fn run(compiler: &Compiler, accept: bool) -> Result<()> {
    let path = root().join("kernels/resources.toml");
    let images = build::images(compiler)?;
    let mut now = Table::new();
    let mut faults = Vec::new();
    for (family, image) in FAMILIES.iter().zip(&images) {
        resources(compiler, image, &mut now, &mut faults)?;
        instructions(compiler, family, image, &mut faults)?;
    }
    let expected: BTreeSet<&str> = FAMILIES.iter().flat_map(|f| f.kernels).copied().collect();
    if now.keys().map(String::as_str).collect::<BTreeSet<_>>() != expected {
        faults.push(format!("images hold {:?}, not {expected:?}", now.keys()));
    }
    println!("{}", shown(&now));
    if accept {
        if !faults.is_empty() {
            bail!("cannot be accepted: {}", faults.join("; "));
        }
        fs::write(&path, render(&now)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("accepted");
        return Ok(());
    }
    let text = fs::read_to_string(&path).unwrap_or_default();
    let before: Table = toml::from_str(&text).context("kernels/resources.toml")?;
    compare(&before, &now, &mut faults);
    if faults.is_empty() {
        return Ok(());
    }
    for fault in &faults {
        println!("resources: {fault}");
    }
    bail!(
        "{} fault(s); if what grew is worth it, `cargo xtask kernels table --accept`, in the \
         commit that says why",
        faults.len()
    );
}

/// Returns the table as people read it.
fn shown(table: &Table) -> String {
    let targets: Vec<String> = build::all_targets().map(|t| format!("sm_{t}")).collect();
    let titles = targets.iter().map(|target| format!(">{target}"));
    let mut shown = table::Table::new(
        ["kernel: registers, shared".to_owned()]
            .into_iter()
            .chain(titles),
    );
    for (kernel, uses) in table {
        let cells = targets.iter().map(|target| match uses.get(target) {
            Some(u) => format!("{}, {}", u.registers, u.shared),
            None => "-".to_owned(),
        });
        shown.row([kernel.clone()].into_iter().chain(cells));
    }
    shown.text()
}

fn render(table: &Table) -> Result<String> {
    let mut text = "# Registers a thread and static shared bytes a block of each kernel, by \
                    architecture.\n# Written by `cargo xtask kernels table --accept`.\n"
        .to_owned();
    for (kernel, uses) in table {
        text += &format!("\n[{kernel}]\n");
        for (target, u) in uses {
            text += &format!(
                "{target} = {{ registers = {}, shared = {} }}\n",
                u.registers, u.shared
            );
        }
    }
    Ok(text)
}

fn compare(before: &Table, now: &Table, faults: &mut Vec<String>) {
    for (kernel, uses) in now {
        for (target, u) in uses {
            let old = before.get(kernel).and_then(|uses| uses.get(target));
            match old {
                None => faults.push(format!("{kernel} on {target} is not in the table")),
                Some(old) if u.registers > old.registers || u.shared > old.shared => {
                    faults.push(format!("{kernel} on {target} grew: {old:?} to {u:?}"));
                }
                Some(_) => {}
            }
        }
    }
    for kernel in before.keys().filter(|k| !now.contains_key(*k)) {
        faults.push(format!("{kernel} is in the table and in no image"));
    }
}

/// Reads `cuobjdump -res-usage`.
fn resources(
    compiler: &Compiler,
    image: &Path,
    table: &mut Table,
    faults: &mut Vec<String>,
) -> Result<()> {
    let output = program(compiler.cuobjdump())
        .args(["-res-usage"])
        .args([image])
        .output()?;
    let (mut target, mut kernel) = (String::new(), String::new());
    for line in output.lines().map(str::trim) {
        if let Some(arch) = line.strip_prefix("arch = ") {
            target = arch.to_owned();
        } else if let Some(name) = line.strip_prefix("Function ") {
            kernel = name.trim_end_matches(':').to_owned();
        } else if line.starts_with("REG:") {
            let value = |name: &str| -> Result<u32> {
                let field = line.split_whitespace().find_map(|f| f.strip_prefix(name));
                let field = field.with_context(|| format!("`{line}` has no {name}"))?;
                field.parse().with_context(|| format!("`{line}`"))
            };
            let stack = STACKS.iter().find(|(name, _)| *name == kernel);
            let stack = stack.map_or(0, |&(_, bytes)| bytes);
            if value("STACK:")? > stack || value("LOCAL:")? > 0 {
                faults.push(format!(
                    "{kernel} on {target} spills or has a stack: {line}"
                ));
            }
            let shared = value("SHARED:")?;
            let registers = value("REG:")?;
            let uses = table.entry(kernel.clone()).or_default();
            uses.insert(target.clone(), Use { registers, shared });
        }
    }
    Ok(())
}

/// Reads the machine code.
fn instructions(
    compiler: &Compiler,
    family: &Family,
    image: &Path,
    faults: &mut Vec<String>,
) -> Result<()> {
    let output = program(compiler.cuobjdump())
        .args(["-sass"])
        .args([image])
        .output()?;
    instruction_faults(family, &output, faults);
    Ok(())
}

/// Finds what is in machine code and must not be, and what is missing.
fn instruction_faults(family: &Family, sass: &str, faults: &mut Vec<String>) {
    // A header that names the function uses it, except the backend, which defines it.
    let multiplies = family
        .headers()
        .any(|h| h.name.ends_with(".cuh") && h.text.contains("mma_m16n8k"));
    // Families of Hopper multiply by warpgroups and copy by tensor maps, in every kernel.
    let wanted: &[&str] = match (family.is_of_hopper(), multiplies) {
        (true, _) => &["HGMMA.", "UTMALDG."],
        (false, true) => &["MMA."],
        (false, false) => &[],
    };
    let (mut target, mut kernel) = ("", "");
    let mut bytewise = BTreeSet::new();
    // Kernel or family, architecture, index of what is wanted.
    let mut found = BTreeSet::new();
    for line in sass.lines().map(str::trim) {
        if let Some(arch) = line.strip_prefix("arch = ") {
            target = arch;
        } else if let Some(name) = line.strip_prefix("Function : ") {
            kernel = name;
        } else if line.contains("LDG.E.U8") || line.contains("STG.E.U8") {
            bytewise.insert(target);
        }
        let unit = if family.is_of_hopper() { kernel } else { "" };
        found.extend(
            (0..wanted.len())
                .filter(|&i| line.contains(wanted[i]))
                .map(|i| (unit, target, i)),
        );
    }
    let units = match family.is_of_hopper() {
        true => family.kernels,
        false => &[""],
    };
    for unit in units {
        for target in build::targets(family) {
            for (i, what) in wanted.iter().enumerate() {
                if !found.contains(&(*unit, format!("sm_{target}").as_str(), i)) {
                    faults.push(format!(
                        "{} {unit} has no {what} on sm_{target}",
                        family.name
                    ));
                }
            }
        }
    }
    if !bytewise.is_empty() {
        let name = family.name;
        faults.push(format!(
            "{name} touches device memory byte by byte on {bytewise:?}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(registers: u32, shared: u32) -> Table {
        let uses = [("sm_90".to_owned(), Use { registers, shared })];
        [("k".to_owned(), uses.into())].into()
    }

    #[test]
    fn growth_is_a_fault_and_shrinking_is_not() {
        let check = |before: &Table, now: &Table, expected: usize| {
            let mut faults = Vec::new();
            compare(before, now, &mut faults);
            assert_eq!(faults.len(), expected, "{faults:?}");
        };
        check(&table(30, 128), &table(30, 128), 0);
        check(&table(30, 128), &table(20, 0), 0);
        check(&table(30, 128), &table(31, 128), 1);
        check(&table(30, 128), &table(30, 129), 1);
        check(&Table::new(), &table(30, 128), 1);
        check(&table(30, 128), &Table::new(), 1);
    }

    /// Every kernel of Hopper multiplies by warpgroups and copies by tensor maps.
    #[test]
    fn instructions_of_hopper() {
        let family = Family::of("prelude_sm90_attn_64").unwrap();
        let of = |kernel: &str, instructions: &str| {
            format!("Function : prelude_sm90_attn_{kernel}\n{instructions}\n")
        };
        let both = "HGMMA.64x128x16.F32.BF16 R24\nUTMALDG.2D [UR8], [UR4]";
        let check = |sass: &str, expected: &[&str]| {
            let mut faults = Vec::new();
            instruction_faults(family, &format!("arch = sm_90a\n{sass}"), &mut faults);
            assert_eq!(faults, expected);
        };
        check(&(of("64", both) + &of("128", both)), &[]);
        check(
            &(of("64", both) + &of("128", "HGMMA.64x128x16.F32.BF16 R24")),
            &["sm90_attn prelude_sm90_attn_128 has no UTMALDG. on sm_90a"],
        );
        check(
            &(of("64", "HMMA.16816.F32.BF16 R4\nUTMALDG.2D [UR8], [UR4]") + &of("128", both)),
            &["sm90_attn prelude_sm90_attn_64 has no HGMMA. on sm_90a"],
        );
    }

    #[test]
    fn a_written_table_reads_back() {
        let table = table(7, 9);
        let text = render(&table).unwrap();
        assert_eq!(toml::from_str::<Table>(&text).unwrap(), table);
    }
}
