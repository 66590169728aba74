//! Tells the linkers that want to know that Python is not there before the module is loaded.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
