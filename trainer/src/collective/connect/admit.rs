//! The decision whether a caller belongs in the mesh, from its hello alone and without a socket.

use crate::collective::error::Refusal;
use crate::collective::membership::Membership;
use crate::collective::wire::Hello;

/// Returns the rank that sent `hello`, if it is a member of `membership` that this rank waits for.
pub(super) fn admit(
    membership: &Membership,
    hello: &Hello,
    is_linked: impl Fn(usize) -> bool,
) -> Result<usize, Refusal> {
    let Membership {
        group,
        generation,
        rank,
        peers,
        ..
    } = membership;
    let peer = hello.from as usize;
    // The hello that this very peer would send, but for the rank it comes from.
    let expected = Hello::new(group, *generation, *rank, *rank, peers.len());
    if hello.version != expected.version {
        Err(Refusal::Version)
    } else if hello.group != expected.group {
        Err(Refusal::Group)
    } else if hello.generation != expected.generation {
        Err(Refusal::Generation)
    } else if hello.to != expected.to
        || hello.world_size != expected.world_size
        // A rank dials lower ranks only.
        || !(*rank + 1..peers.len()).contains(&peer)
    {
        Err(Refusal::Rank)
    } else if is_linked(peer) {
        Err(Refusal::Duplicate)
    } else {
        Ok(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::endpoint::Endpoint;
    use volley_proto::Secret;

    #[test]
    fn only_a_higher_rank_of_the_same_generation_is_admitted_once() {
        let endpoint = Endpoint {
            host_id: String::new(),
            tcp: None,
            unix: None,
        };
        let membership = Membership {
            group: "g".to_owned(),
            generation: 7,
            rank: 1,
            peers: vec![endpoint; 4],
            secret: Secret::random(),
        };
        let right = Hello::new("g", 7, 3, 1, 4);
        let verdict = |hello: Hello| admit(&membership, &hello, |peer| peer == 2);

        assert_eq!(verdict(right), Ok(3));
        assert_eq!(
            verdict(Hello {
                version: 0,
                ..right
            }),
            Err(Refusal::Version)
        );
        assert_eq!(verdict(Hello::new("h", 7, 3, 1, 4)), Err(Refusal::Group));
        assert_eq!(
            verdict(Hello::new("g", 6, 3, 1, 4)),
            Err(Refusal::Generation)
        );
        assert_eq!(
            verdict(Hello::new("g", 8, 3, 1, 4)),
            Err(Refusal::Generation)
        );
        assert_eq!(
            verdict(Hello::new("g", 7, 3, 2, 4)),
            Err(Refusal::Rank),
            "meant for another"
        );
        assert_eq!(
            verdict(Hello::new("g", 7, 3, 1, 5)),
            Err(Refusal::Rank),
            "another world"
        );
        assert_eq!(
            verdict(Hello::new("g", 7, 4, 1, 4)),
            Err(Refusal::Rank),
            "no such rank"
        );
        assert_eq!(
            verdict(Hello::new("g", 7, 1, 1, 4)),
            Err(Refusal::Rank),
            "itself"
        );
        assert_eq!(
            verdict(Hello::new("g", 7, 0, 1, 4)),
            Err(Refusal::Rank),
            "a lower rank"
        );
        assert_eq!(
            verdict(Hello::new("g", 7, 2, 1, 4)),
            Err(Refusal::Duplicate)
        );
    }
}
