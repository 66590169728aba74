//! `modules.json` of sentence-transformers: the steps from a body's hidden states to a vector, and the
//! folders in which their files lie.

use serde_json::Value;

use crate::{
    Activation, Error, fields,
    json::{self, Fields},
};

pub(crate) const MODULES: &str = "modules.json";
/// The file of fields of a module `Dense`, as the table of fields knows it.
const DENSE: &str = "2_Dense/config.json";
/// The file of fields of a module `Normalize`, as the table of fields knows it.
const NORMALIZE: &str = "2_Normalize/config.json";

/// The most modules `Dense` behind each other; published models have two.
const DENSE_MAX: usize = 8;
/// The most numbers of a vector behind a module `Dense`.
const FEATURES_MAX: usize = 1 << 17;

/// A module `Dense` of sentence-transformers: a product, behind a pooling and before vectors are scaled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenseConfig {
    /// Name of the folder with the module's files; the module's tensors are `<folder>/linear.weight`
    /// and `.bias`.
    pub folder: String,
    /// Length of the vector that goes in.
    pub inputs: usize,
    /// Length of the vector that comes out.
    pub outputs: usize,
    /// True if a bias is added.
    pub bias: bool,
    /// The function of each number that comes out, if there is one.
    pub activation: Option<Activation>,
}

/// The files of a module `Dense`.
#[derive(Clone, Debug)]
pub(crate) struct DenseDocument {
    pub(crate) folder: String,
    pub(crate) config: Vec<u8>,
}

/// The kinds of pipelines of modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipeline {
    /// The model alone.
    Classifier,
    /// A body, its pooling, perhaps products of vectors, and perhaps their scaling.
    Embedder,
    /// A language model and the logits that are its score.
    Judge,
}

/// The modules behind a pooling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modules {
    /// Folders of the modules `Dense`, in their order.
    pub(crate) dense: Vec<String>,
    /// Folder of the module `Normalize`, if vectors are scaled to length 1.
    pub(crate) normalize: Option<String>,
    /// Folder of the body's files, if it is not the checkpoint's own.
    pub(crate) body: Option<String>,
}

impl Modules {
    /// Returns the modules whose files are read, whatever the others are: [`Modules::read`] refuses
    /// what is not known.
    pub(crate) fn find(bytes: &[u8]) -> Result<Self, Error> {
        let mut found = Self::default();
        for module in list(bytes)? {
            found.add(&module);
        }
        Ok(found)
    }

    /// Returns the modules of a pipeline. Modules that would change the numbers otherwise are refused.
    pub(crate) fn read(
        bytes: &[u8],
        pipeline: Pipeline,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut last_stage = 0;
        for module in list(bytes)? {
            let path = module["path"].as_str().unwrap_or_default();
            let is_folder = is_folder(path);
            let stage = match (class(&module), pipeline) {
                ("Transformer", _) if path.is_empty() || is_folder => 0,
                ("Pooling", Pipeline::Embedder) if path == "1_Pooling" => 1,
                ("LogitScore", Pipeline::Judge) if path == "1_LogitScore" => 1,
                ("Dense", Pipeline::Embedder) if is_folder => 2,
                ("Normalize", Pipeline::Embedder) if is_folder => 3,
                _ => return Err(unsupported(&module, "")),
            };
            if stage < last_stage || found.dense.len() == DENSE_MAX {
                return Err(unsupported(&module, ", where it stands"));
            }
            last_stage = stage;
            found.add(&module);
            if let Some(map) = module.as_object() {
                warnings.extend(fields::check(MODULES, map)?);
            }
        }
        Ok(found)
    }

    fn add(&mut self, module: &Value) {
        let path = module["path"].as_str().unwrap_or_default();
        if !is_folder(path) {
            return;
        }
        match class(module) {
            "Transformer" => self.body = Some(path.to_owned()),
            "Dense" => self.dense.push(path.to_owned()),
            "Normalize" => self.normalize = Some(path.to_owned()),
            _ => {}
        }
    }
}

fn unsupported(module: &Value, place: &str) -> Error {
    let kind = module["type"].as_str().unwrap_or_default();
    let path = module["path"].as_str().unwrap_or_default();
    Error::Unsupported {
        file: MODULES.to_owned(),
        what: format!("module {kind:?} at {path:?}{place}"),
    }
}

/// Returns true for the name of a folder in the checkpoint's own.
fn is_folder(path: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !path.is_empty() && path.len() <= 100 && path.chars().all(is_part)
}

fn list(bytes: &[u8]) -> Result<Vec<Value>, Error> {
    match json::value(MODULES, bytes)? {
        Value::Array(modules) => Ok(modules),
        _ => Err(Error::Unsupported {
            file: MODULES.to_owned(),
            what: "anything but a list of modules".to_owned(),
        }),
    }
}

/// Returns the name of a module's class, without the path of its package; nothing for a class of
/// another package, which may compute anything. Releases of sentence-transformers have had their
/// modules in several places: `models`, and since 5.5 `base.modules`, `sentence_transformer.modules`
/// and `cross_encoder.modules`.
fn class(module: &Value) -> &str {
    let kind = module["type"].as_str().unwrap_or_default();
    let own = kind.strip_prefix("sentence_transformers.");
    own.and_then(|own| own.rsplit('.').next())
        .unwrap_or_default()
}

/// Returns whether the modules score texts by a language model's logits.
pub(crate) fn has_logit_score(bytes: &[u8]) -> Result<bool, Error> {
    let modules = json::value(MODULES, bytes)?;
    let modules = modules.as_array().map_or(&[][..], Vec::as_slice);
    let is_score = |module: &Value| class(module) == "LogitScore";
    Ok(modules.iter().any(is_score))
}

/// Reads the fields of a module `Normalize`.
pub(crate) fn check_normalize(
    folder: &str,
    bytes: &[u8],
    warnings: &mut Vec<String>,
) -> Result<(), Error> {
    let file = format!("{folder}/config.json");
    let map = json::object(&file, bytes)?;
    warnings.extend(fields::check_as(NORMALIZE, &file, &map)?);
    Ok(())
}

impl DenseConfig {
    /// Reads the modules `Dense` in the order in which they follow a pooled vector of `width` numbers.
    pub(crate) fn read_all(
        documents: &[DenseDocument],
        mut width: usize,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Self>, Error> {
        let mut modules = Vec::new();
        for document in documents {
            let module = Self::read(document, width, warnings)?;
            width = module.outputs;
            modules.push(module);
        }
        Ok(modules)
    }

    fn read(
        document: &DenseDocument,
        width: usize,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let file = format!("{}/config.json", document.folder);
        let map = json::object(&file, &document.config)?;
        warnings.extend(fields::check_as(DENSE, &file, &map)?);
        let fields = Fields::new(&file, &map);
        let inputs = fields.required_count("in_features", FEATURES_MAX)?;
        if inputs != width {
            let what = format!("must be {width}, the length of what goes in, not {inputs}");
            return Err(fields.wrong("in_features", what));
        }
        Ok(Self {
            folder: document.folder.clone(),
            inputs,
            outputs: fields.required_count("out_features", FEATURES_MAX)?,
            bias: fields.boolean("bias")?.unwrap_or(true),
            activation: activation(&fields)?,
        })
    }

    /// Returns the beginning of the names of the module's tensors.
    pub(crate) fn name(&self) -> String {
        format!("{}/linear", self.folder)
    }
}

/// Returns the activation that a file names by its class in PyTorch.
fn activation(fields: &Fields<'_>) -> Result<Option<Activation>, Error> {
    const NAME: &str = "activation_function";
    let name = fields.required(NAME, fields.text(NAME)?)?;
    let is_torch = name.starts_with("torch.nn.");
    match name.rsplit('.').next().filter(|_| is_torch) {
        Some("Identity") => Ok(None),
        Some("Tanh") => Ok(Some(Activation::Tanh)),
        Some("ReLU") => Ok(Some(Activation::Relu)),
        Some("GELU") => Ok(Some(Activation::Gelu)),
        _ => Err(fields.unsupported(format!("`{NAME}` of {name:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tensors::of_modules;

    fn read(modules: &[(&str, &str)], pipeline: Pipeline) -> Result<Modules, String> {
        let module = |(class, path): &(&str, &str)| json!({"type": format!("sentence_transformers.models.{class}"), "path": path});
        let document = Value::Array(modules.iter().map(module).collect());
        let found = Modules::read(document.to_string().as_bytes(), pipeline, &mut Vec::new());
        found.map_err(|e| e.to_string())
    }

    #[test]
    fn modules_of_embedders() {
        let body = ("Transformer", "");
        let pooling = ("Pooling", "1_Pooling");
        let check = |modules: &[(&str, &str)], dense: &[&str], normalize: Option<&str>| {
            let found = read(modules, Pipeline::Embedder).unwrap();
            assert_eq!(found.dense, dense);
            assert_eq!(found.normalize.as_deref(), normalize);
        };
        check(&[], &[], None);
        let scaled = ("Normalize", "2_Normalize");
        check(&[body, pooling, scaled], &[], Some("2_Normalize"));
        let (a, b) = (("Dense", "2_Dense"), ("Dense", "3_Dense"));
        let last = ("Normalize", "4_Normalize");
        let all = [body, pooling, a, b, last];
        check(&all, &["2_Dense", "3_Dense"], Some("4_Normalize"));
        check(&[body, pooling, a], &["2_Dense"], None);
    }

    /// The places of modules in sentence-transformers 2 to 6, and the folders of 2019.
    #[test]
    fn modules_by_their_full_names() {
        let document = json!([
            {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"},
            {"type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
                "path": "1_Pooling"},
            {"type": "sentence_transformers.base.modules.dense.Dense", "path": "2_Dense"},
            {"type": "sentence_transformers.base.modules.normalize.Normalize", "path": "3_N"},
        ]);
        let bytes = document.to_string();
        let found = Modules::read(bytes.as_bytes(), Pipeline::Embedder, &mut Vec::new()).unwrap();
        assert_eq!(found.body.as_deref(), Some("0_Transformer"));
        assert_eq!(found.dense, ["2_Dense"]);
        assert_eq!(found.normalize.as_deref(), Some("3_N"));
        let judge = json!([
            {"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""},
            {"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
                "path": "1_LogitScore"},
        ]);
        let bytes = judge.to_string();
        assert!(has_logit_score(bytes.as_bytes()).unwrap());
        let found = Modules::read(bytes.as_bytes(), Pipeline::Judge, &mut Vec::new()).unwrap();
        assert_eq!(found.body, None);
    }

    #[test]
    fn other_modules_are_refused_by_name() {
        let check = |modules: &[(&str, &str)], pipeline, part: &str| {
            let error = read(modules, pipeline).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        let embedder = Pipeline::Embedder;
        // A class of another package is not what its name says.
        for (class, path) in [
            ("custom_st.Transformer", ""),
            ("my_code.Pooling", "1_Pooling"),
            ("Transformer", ""),
            ("sentence_transformers_fork.models.Dense", "2_Dense"),
        ] {
            let document = json!([{"type": class, "path": path}]).to_string();
            let found = Modules::read(document.as_bytes(), embedder, &mut Vec::new());
            let error = found.unwrap_err().to_string();
            assert!(error.contains(&format!("module {class:?}")), "{error}");
        }
        check(&[("Transformer", "../x")], embedder, "Transformer\" at");
        let strange = ("WordWeights", "2_WordWeights");
        check(&[strange], embedder, "WordWeights\" at \"2_WordWeights\"");
        check(&[("Pooling", "pool")], embedder, "Pooling\" at \"pool\"");
        for path in ["../other", "", "a/b", ".hidden", "C:x"] {
            check(&[("Dense", path)], embedder, "Dense\" at");
        }
        // Vectors are scaled last.
        let late = [("Normalize", "2_Normalize"), ("Dense", "3_Dense")];
        check(&late, embedder, "where it stands");
        check(&[("Dense", "a"); 9], embedder, "where it stands");
        check(&[("Dense", "2_Dense")], Pipeline::Classifier, "Dense");
        check(&[("Normalize", "n")], Pipeline::Judge, "Normalize");
        let no_list = Modules::read(b"{}", embedder, &mut Vec::new());
        assert!(no_list.is_err());
    }

    #[test]
    fn fields_of_dense_modules() {
        let read = |config: Value| {
            let document = DenseDocument {
                folder: "2_Dense".to_owned(),
                config: config.to_string().into_bytes(),
            };
            DenseConfig::read_all(&[document], 8, &mut Vec::new()).map_err(|e| e.to_string())
        };
        let base = json!({"in_features": 8, "out_features": 3, "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity"});
        let with = |name: &str, value: Value| {
            let mut config = base.clone();
            config[name] = value;
            read(config)
        };
        let plain = read(base.clone()).unwrap();
        let found = &plain[0];
        assert_eq!((found.inputs, found.outputs), (8, 3));
        assert_eq!((found.bias, found.activation), (false, None));
        let shapes: Vec<_> = of_modules(&plain).into_iter().collect();
        assert_eq!(shapes, [("2_Dense/linear.weight".to_owned(), vec![3, 8])]);
        assert_eq!(of_modules(&with("bias", json!(true)).unwrap()).len(), 2);
        let tanh = json!("torch.nn.modules.activation.Tanh");
        let found = with("activation_function", tanh).unwrap();
        assert_eq!(found[0].activation, Some(Activation::Tanh));
        let check = |name: &str, value: Value, part: &str| {
            let error = with(name, value).unwrap_err();
            assert!(
                error.contains(part) && error.contains("2_Dense/config.json"),
                "{error}"
            );
        };
        check("in_features", json!(7), "must be 8");
        check("out_features", json!(0), "`out_features`");
        check("activation_function", Value::Null, "is missing");
        let other = json!("torch.nn.modules.activation.SELU");
        check("activation_function", other, "SELU");
        check("activation_function", json!("my.Tanh"), "my.Tanh");
        let tokens = json!("token_embeddings");
        check("module_input_name", tokens, "`module_input_name`");
    }
}
