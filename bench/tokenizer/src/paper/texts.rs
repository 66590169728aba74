//! The sentences and snippets of the paper's rows. They are ours; their kinds and lengths are
//! those of the paper's program.

pub(super) const TINY: &str = "Ferry";

pub(super) const SHORT_ENGLISH: &str = "A heron stood by the weir and waited for its catch.";

pub(super) const SHORT_CHINESE: &str =
    "清晨的渡口起了薄雾，船夫把缆绳慢慢解开，等着第一位客人上船。";

pub(super) const PROSE: &str = "\
    Erlang grew up inside a telephone company, and it still carries the habits of that trade. A \
    program is a crowd of small processes that share nothing and speak only by messages, so that \
    one may fail without dragging its neighbours down. A supervisor watches over them and starts \
    them again from a state known to be sound, which is often wiser than patching up a broken one. \
    Code can be replaced while calls are in progress, since an exchange may not be switched off \
    for an update. The syntax borrows from Prolog and looks strange at first, but pattern matching \
    soon feels natural. Many services that must never sleep were built on these old ideas and are \
    still running today.";

pub(super) const SNIPPET: &str = r#"/// Moves what fits onto the shelf; tells how many stay.
fn refill(from: &mut Vec<Crate>, shelf: &mut Shelf) -> Result<usize, Full> {
    while let Some(next) = from.pop() {
        if shelf.weight + next.weight > shelf.limit {
            from.push(next);
            break;
        }
        shelf.weight += next.weight;
        shelf.boxes.push(next);
    }
    if shelf.boxes.is_empty() {
        return Err(Full { waiting: from.len() });
    }
    Ok(from.len())
}
"#;

/// English, Chinese, French, Japanese, Korean, German, Russian, Spanish, Portuguese.
pub(super) const LANGUAGES: [&str; 9] = [
    "The last tram to the harbour leaves before midnight on working days.",
    "末班电车将在午夜之前离开港口。",
    "Le boulanger a déjà fermé ses volets à cause de la tempête qui approche.",
    "雨が止むまで、駅の待合室で本を読んでいました。",
    "할머니는 마당에서 고추를 말리고 계십니다.",
    "Die Gärtnerin gießt früh am Morgen die jungen Bäume hinter der Schule.",
    "Рыбаки вернулись домой с хорошим уловом и починили лодку.",
    "El niño perdió su balón detrás del jardín de la señora Ibáñez.",
    "A professora explicou outra vez a lição às crianças da aldeia.",
];

pub(super) const REPEATED: &str = "Nine grey geese cross the cold lake at dawn. ";

pub(super) const SYSTEM: &str =
    "You answer guests of a small mountain inn in a few friendly words.";

pub(super) const QUESTION: &str =
    "Is breakfast served before seven? We want to be up the pass early.";

pub(super) const SENTENCES: [&str; 15] = [
    "The lighthouse keeper wrote down the weather every evening before supper.",
    "Our neighbour repairs old clocks in a shed that smells of oil and sawdust.",
    "Most of the bridge was carried away when the river rose in early spring.",
    "She learned to read from seed catalogues that her aunt kept by the stove.",
    "A night train crosses the plain with only three passengers and the guard.",
    "The committee put off its decision until the new figures could be checked.",
    "Fresh bread is sold at the back door of the bakery from four o'clock on.",
    "Nobody remembers who planted the walnut tree in the middle of the square.",
    "Under the ice the lake goes on living, slowly and almost without a sound.",
    "He paid for the violin in small coins, which took the better part of a day.",
    "The map showed a path where in truth there was nothing but bog and heather.",
    "Children from both villages meet at the mill to skate when it is cold enough.",
    "Three of the letters came back unopened, and the fourth was never answered.",
    "An expert on beetles spent the summer counting them along the railway line.",
    "The soup needs an hour more, some thyme, and someone who will stir it often.",
];

pub(super) const SNIPPETS: [&str; 6] = [
    r#"/// The share of seats that are taken, between 0 and 1.
pub fn occupancy(seats: &[Seat]) -> f64 {
    let taken = seats.iter().filter(|seat| seat.guest.is_some()).count();
    taken as f64 / seats.len().max(1) as f64
}
"#,
    r#"impl Iterator for Tides {
    type Item = Tide;

    fn next(&mut self) -> Option<Tide> {
        let at = self.last + Duration::from_secs(22_350);
        self.last = at;
        self.high = !self.high;
        Some(Tide { at, high: self.high })
    }
}
"#,
    r#"#[derive(Debug, Clone, PartialEq)]
enum Parcel {
    Letter { grams: u16 },
    Box { grams: u32, sides_mm: [u32; 3] },
    Pallet(Vec<Parcel>),
}

fn grams(parcel: &Parcel) -> u32 {
    match parcel {
        Parcel::Letter { grams } => u32::from(*grams),
        Parcel::Box { grams, .. } => *grams,
        Parcel::Pallet(parcels) => parcels.iter().map(grams).sum(),
    }
}
"#,
    r#"let mut by_street: BTreeMap<&str, Vec<&House>> = BTreeMap::new();
for house in &town.houses {
    by_street.entry(house.street.as_str()).or_default().push(house);
}
for (street, houses) in &by_street {
    println!("{street}: {} houses", houses.len());
}
"#,
    r#"fn read_gauge(port: &mut impl Read) -> io::Result<i16> {
    let mut frame = [0u8; 4];
    port.read_exact(&mut frame)?;
    if frame[0] != 0x7E || frame[3] != frame[1] ^ frame[2] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bad frame"));
    }
    Ok(i16::from_be_bytes([frame[1], frame[2]]))
}
"#,
    r#"#[test]
fn bells_ring_on_the_hour() {
    let mut tower = Tower::at(11, 59);
    assert_eq!(tower.tick(), None);
    assert_eq!(tower.tick(), Some(Chime { strokes: 12 }));
}
"#,
];

/// The messages of a user and the assistant, in turns.
pub(super) const TURNS: [(&str, &str); 8] = [
    (
        "My bread comes out of the oven flat and heavy every time. What am I doing wrong?",
        "Most likely it rose for too long. Press it with a finger: if the hollow stays, it \
         should have gone into the oven already.",
    ),
    (
        "How long should the dough rest in a cold kitchen in winter?",
        "Until it has nearly doubled — at 17 degrees that may well take five hours, so trust \
         your eyes and not the clock on the wall.",
    ),
    (
        "Write me a small function that turns cups of flour into grams, please.",
        "```python\ndef grams(cups):\n    return round(cups * 125)\n```\nA cup weighs about 125 g \
         if you spoon the flour in loosely and do not press it down.",
    ),
    (
        "Is rye flour heavier than wheat flour, and may I swap them?",
        "Hardly, but it takes up more water and holds less gas, so the loaf feels denser. Begin \
         with a third of rye and see how you like it.",
    ),
    (
        "And how do I scale a recipe for a larger round tin that my aunt gave me?",
        "Compare the areas of both tins, since the height stays the same:\n```python\nfactor = \
         (new / old) ** 2\n```\nThen multiply every amount by it, salt and yeast included.",
    ),
    (
        "What does a tray of hot water do in the oven, apart from making a mess?",
        "The steam keeps the crust soft for the first minutes, so that the loaf can grow. Later \
         on it gives the surface its shine and a browner colour.",
    ),
    (
        "Can I freeze half of the loaf, or does that spoil the crumb?",
        "Yes, it keeps well. Let it cool, slice it, wrap it tightly and toast the slices \
         straight from the freezer, without thawing them first.",
    ),
    (
        "Thanks, that helps a lot! Which book would you start with if you could keep only one?",
        "One with few recipes and many pictures of dough. Bake the same loaf ten times before \
         you turn the page, and write down what changed.",
    ),
];

pub(super) const PARAGRAPHS: [&str; 5] = [
    "山谷里的小学只有一位老师和十九个孩子，每到冬天大雪封路，家长们就轮流把劈好的柴火背到教室门口，让那只旧炉子从早到晚都烧得旺旺的，谁也不会挨冻。",
    "邮递员骑着旧自行车走遍了沿河的村庄，他记得120户人家的看门狗各叫什么名字，也知道哪一位老人正盼着儿女从南方寄来的信，这么多年从来没有送错过一封。",
    "今年的茶叶比往年晚了十天才采，茶农说是因为春雨来得太迟，不过等来的叶子又厚又香，炒好以后薄薄地摊在竹匾里，整条老街上都能闻到那股淡淡的清香。",
    "修桥的工人在河滩上搭起了帐篷，白天打桩，夜里轮班看守水位，到了第2年秋天，头一辆马车终于从新桥上慢慢走过，两岸的人们都站在堤坝上鼓掌，久久不愿意散去。",
    "图书馆的角落里有一张靠窗的长桌，退休的钟表匠每天下午都来到这里画图，他想造一座从来不用上发条的钟，只靠早晚温度的变化，就能一直安安静静地走下去。",
];
