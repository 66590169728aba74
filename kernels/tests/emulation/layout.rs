//! Parameter structs are the same in C++ and in Rust.

use prelude_kernels::{FAMILIES, Params, families};

use crate::support;

#[test]
fn structs_are_mirrored() {
    let Some(library) = support::library() else {
        return;
    };
    let mut known = Vec::new();
    fn check<P: Params>(library: &prelude_kernels::emu::Library, known: &mut Vec<&'static str>) {
        assert_eq!(library.layout_difference::<P>(), None);
        known.push(P::NAME);
    }
    check::<families::ActivateParams>(&library, &mut known);
    check::<families::AdjustParams>(&library, &mut known);
    check::<families::AdjustRow>(&library, &mut known);
    check::<families::ArgmaxParams>(&library, &mut known);
    check::<families::AttnDecodeParams>(&library, &mut known);
    check::<families::AttnVarlenParams>(&library, &mut known);
    check::<families::CapLogitsParams>(&library, &mut known);
    check::<families::ClassifyParams>(&library, &mut known);
    check::<families::DecodeItem>(&library, &mut known);
    check::<families::DecodeRow>(&library, &mut known);
    check::<families::EmbedParams>(&library, &mut known);
    check::<families::ExpertsGemmParams>(&library, &mut known);
    check::<families::ExpertsOrderParams>(&library, &mut known);
    check::<families::ExpertsRouteParams>(&library, &mut known);
    check::<families::ExpertsSumParams>(&library, &mut known);
    check::<families::EmbedSumParams>(&library, &mut known);
    check::<families::GatherRowsParams>(&library, &mut known);
    check::<families::GemmFp8Params>(&library, &mut known);
    check::<families::GemmParams>(&library, &mut known);
    check::<families::LabelDotsParams>(&library, &mut known);
    check::<families::LabelLogitsParams>(&library, &mut known);
    check::<families::LabelMergeParams>(&library, &mut known);
    check::<families::LayerNormParams>(&library, &mut known);
    check::<families::LogprobRow>(&library, &mut known);
    check::<families::LogprobsParams>(&library, &mut known);
    check::<families::MeanRow>(&library, &mut known);
    check::<families::PoolParams>(&library, &mut known);
    check::<families::PoolRow>(&library, &mut known);
    check::<families::QkNormRopeStoreParams>(&library, &mut known);
    check::<families::QuantFp8RowParams>(&library, &mut known);
    check::<families::RmsNormFp8RowParams>(&library, &mut known);
    check::<families::RmsNormParams>(&library, &mut known);
    check::<families::SampleParams>(&library, &mut known);
    check::<families::SampleRow>(&library, &mut known);
    check::<families::Segment>(&library, &mut known);
    check::<families::SegmentMeansParams>(&library, &mut known);
    check::<families::SiluMulParams>(&library, &mut known);
    check::<families::Sm90AttnParams>(&library, &mut known);
    check::<families::Sm90GemmParams>(&library, &mut known);
    check::<families::Span>(&library, &mut known);
    check::<families::Tile>(&library, &mut known);
    // No kernel was forgotten, here or in the list of families.
    let listed: Vec<&str> = FAMILIES.iter().flat_map(|f| f.kernels).copied().collect();
    let defined = library.kernels();
    for kernel in defined.iter().filter(|k| !k.name.starts_with("emu_")) {
        assert!(
            listed.contains(&&*kernel.name),
            "{kernel:?} is in no family"
        );
        let params = kernel.params.rsplit("::").next().unwrap();
        assert!(known.contains(&params), "{params} is not compared");
    }
    for kernel in listed {
        assert!(defined.iter().any(|k| k.name == kernel), "{kernel}");
    }
}
