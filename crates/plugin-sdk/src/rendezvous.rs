//! How ranks that are processes find each other: the first rank listens near the port that the launcher names, the others
//! tell it where they listen, and each gets the list; then every two are connected.
//!
//! The launcher's own port is not used: `torchrun` keeps a store of its own there. Connections begin with a number of the
//! world, so that strangers and ranks of other programs are sent away. Nothing is encrypted: the network must be trusted, as
//! for other collectives.
//!
//! Engines of collectives use it: to exchange by these connections, or to pass on what their library wants every rank to have, and
//! to notice that a rank has died. Not here: what is exchanged.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Ports behind the launcher's that are tried.
const PORTS: u16 = 16;
/// The first bytes of a connection, with the version of this protocol.
const MAGIC: u64 = 0x6666_7872_616e_6b01;
/// How long one that has connected may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a connection is looked at that its rank seems to have given up.
const LOOKS: u32 = 10;
/// Between two looks for a rank that is not there yet.
const PAUSE: Duration = Duration::from_millis(5);

/// The parts of `host:port`; `None` for a name.
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty() && !host.contains(char::is_whitespace)).then_some((host, port))
}

/// Ranks that are to be connected.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    /// This rank's number.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// A number that ranks of other groups do not have.
    pub group: u64,
    /// When to give up.
    pub deadline: Instant,
}

/// A number made of the parts, the same in every process of a program.
pub fn number_of(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// A port of this machine on which another rank may connect.
///
/// # Errors
/// No port is free.
pub fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
}

/// A listener, with its port, which is none of those where the first rank is looked for: one that asked there would be
/// kept waiting for an answer.
fn listen_apart(port: u16) -> io::Result<(TcpListener, u16)> {
    let mut in_the_way = Vec::new();
    loop {
        let listener = listen()?;
        let own = listener.local_addr()?.port();
        if !(1..=PORTS).any(|n| port.checked_add(n) == Some(own)) {
            return Ok((listener, own));
        }
        // Held until another is found, so that the system gives another.
        in_the_way.push(listener);
    }
}

/// Finds the other ranks and connects every two; the streams by rank, with nothing at this rank's own place.
///
/// # Errors
/// A message that names the ranks that did not come, or the address at which nobody is.
pub fn meet(meeting: &Meeting, host: &str, port: u16) -> Result<Vec<Option<TcpStream>>, String> {
    let (listener, own) = listen_apart(port).map_err(|e| format!("no port is free: {e}"))?;
    let places = match meeting.rank {
        0 => gather(meeting, port, own)?,
        _ => report(meeting, (host, port), own)?,
    };
    connect(meeting, &listener, &places)
}

/// A time after which a call gives up; never zero, which would mean none.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Who is at the other end of a connection: the number of its group, its rank, a port.
fn hello(stream: &mut TcpStream, numbers: [u64; 3]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for n in [MAGIC].into_iter().chain(numbers) {
        stream.write_all(&n.to_le_bytes())?;
    }
    Ok(())
}

fn number(stream: &mut TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// What [`hello`] said, where it is one of the group.
fn greeted(stream: &mut TcpStream, group: u64, deadline: Instant) -> io::Result<Option<(usize, u64)>> {
    // Whether accepted connections block depends on the system.
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(left(deadline).min(PATIENCE)))?;
    if number(stream)? != MAGIC || number(stream)? != group {
        return Ok(None);
    }
    let (rank, port) = (number(stream)?, number(stream)?);
    Ok(Some((rank as usize, port)))
}

/// The next connection; `None` after the deadline. The listener does not block.
fn accept(listener: &TcpListener, deadline: Instant) -> Result<Option<(TcpStream, SocketAddr)>, String> {
    loop {
        match listener.accept() {
            Ok(found) => return Ok(Some(found)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // One that went away before it was accepted.
            Err(e)
                if e.kind() == io::ErrorKind::ConnectionAborted || e.kind() == io::ErrorKind::Interrupted => {
            }
            Err(e) => return Err(format!("cannot accept connections: {e}")),
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The first rank: where every rank listens. Each is sent the list once all have come.
fn gather(meeting: &Meeting, port: u16, own: u16) -> Result<Vec<SocketAddr>, String> {
    let candidates = (1..=PORTS).filter_map(|n| port.checked_add(n));
    let listener =
        candidates.filter_map(|p| TcpListener::bind((Ipv4Addr::UNSPECIFIED, p)).ok()).next().ok_or_else(
            || format!("none of the {PORTS} ports behind {port} is free: name another port (MASTER_PORT)"),
        )?;
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let unspecified = |port: u16| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
    let mut come: Vec<Option<(SocketAddr, Option<TcpStream>)>> = (0..meeting.size).map(|_| None).collect();
    come[0] = Some((unspecified(own), None));
    loop {
        // One that waited too long for an answer has closed its connection, and comes again.
        let gone = |place: &Option<(SocketAddr, Option<TcpStream>)>| matches!(place, Some((_, Some(stream))) if has_left(stream));
        come.iter_mut().filter(|place| gone(place)).for_each(|place| *place = None);
        if come.iter().all(Option::is_some) {
            break;
        }
        let missing = || {
            let all = come.iter().enumerate().filter(|(_, c)| c.is_none());
            format!("ranks {:?} of {} did not come", all.map(|(n, _)| n).collect::<Vec<_>>(), meeting.size)
        };
        let (mut stream, from) = accept(&listener, meeting.deadline)?.ok_or_else(missing)?;
        let Ok(Some((rank, port))) = greeted(&mut stream, meeting.group, meeting.deadline) else { continue };
        let Some(place) = come.get_mut(rank).filter(|place| is_free(place)) else {
            return Err(format!("rank {rank} of {} has come twice, or is none of them", meeting.size));
        };
        // It knows by this that it need not look further.
        if hello(&mut stream, [meeting.group, 0, 0]).is_ok() {
            *place = Some((SocketAddr::new(from.ip(), port as u16), Some(stream)));
        }
    }
    let places: Vec<SocketAddr> = come.iter().flatten().map(|(at, _)| *at).collect();
    let list = places.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    for (rank, (_, stream)) in come.iter_mut().flatten().enumerate() {
        let Some(stream) = stream else { continue };
        let sent = stream
            .write_all(&(list.len() as u64).to_le_bytes())
            .and_then(|()| stream.write_all(list.as_bytes()));
        sent.map_err(|e| format!("rank {rank} is gone while the ranks meet: {e}"))?;
    }
    Ok(places)
}

/// Whether a rank may take its place: nobody has it, or it is that of a connection which the rank gives up, as is seen soon.
fn is_free(place: &Option<(SocketAddr, Option<TcpStream>)>) -> bool {
    match place {
        None => true,
        Some((_, None)) => false,
        Some((_, Some(stream))) => (0..LOOKS).any(|n| {
            std::thread::sleep(PAUSE * n);
            has_left(stream)
        }),
    }
}

/// Whether the other end of a connection on which nothing is said has closed it.
fn has_left(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let open = matches!(&looked, Err(e) if e.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_err() || !open
}

/// Another rank: tells the first one where it listens, and is told where all do.
fn report(meeting: &Meeting, (host, port): (&str, u16), own: u16) -> Result<Vec<SocketAddr>, String> {
    let mut stream = find(meeting, (host, port), own)?;
    let first = stream.peer_addr().map_err(|e| e.to_string())?.ip();
    let list = (|| -> io::Result<String> {
        stream.set_read_timeout(Some(left(meeting.deadline)))?;
        let length = number(&mut stream)?.min(1 << 20);
        let mut text = vec![0; length as usize];
        stream.read_exact(&mut text)?;
        String::from_utf8(text).map_err(io::Error::other)
    })();
    let list = list.map_err(|e| format!("the first rank is gone, or ranks did not come: {e}"))?;
    let places: Option<Vec<SocketAddr>> = list.split(',').map(|p| p.parse().ok()).collect();
    let mut places = places
        .filter(|p| p.len() == meeting.size)
        .ok_or_else(|| format!("the first rank knows of other ranks than {}: `{list}`", meeting.size))?;
    places[0].set_ip(first);
    Ok(places)
}

/// A connection with the first rank, as soon as it is there.
fn find(meeting: &Meeting, (host, port): (&str, u16), own: u16) -> Result<TcpStream, String> {
    let mut why = String::new();
    while Instant::now() < meeting.deadline {
        let hosts: Vec<IpAddr> = match (host, port).to_socket_addrs() {
            Ok(found) => found.map(|a| a.ip()).collect(),
            Err(e) => return Err(format!("there is no host `{host}`: {e}")),
        };
        for port in (1..=PORTS).filter_map(|n| port.checked_add(n)) {
            for host in &hosts {
                match introduce(meeting, SocketAddr::new(*host, port), own) {
                    Ok(Some(stream)) => return Ok(stream),
                    Ok(None) => {}
                    Err(e) => why = e.to_string(),
                }
            }
        }
        std::thread::sleep(PAUSE * 4);
    }
    Err(format!(
        "the first rank is not at {host}, ports {} to {}: {why}",
        u32::from(port) + 1,
        port.saturating_add(PORTS)
    ))
}

/// A connection with what is at a place, if that is the first rank. Another rank may be there: where nobody listens at a port
/// of the range from which the system takes the ports of those who connect, it may connect two ranks that look for the first
/// one, or a rank with itself.
fn introduce(meeting: &Meeting, at: SocketAddr, own: u16) -> io::Result<Option<TcpStream>> {
    let mut stream = TcpStream::connect_timeout(&at, left(meeting.deadline).min(PATIENCE))?;
    hello(&mut stream, [meeting.group, meeting.rank as u64, u64::from(own)])?;
    let met = greeted(&mut stream, meeting.group, meeting.deadline)?;
    Ok(met.filter(|(rank, _)| *rank == 0).map(|_| stream))
}

/// Connects every two ranks: each connects to those before it, which listen already.
///
/// # Errors
/// A message that names the rank that did not come.
pub fn connect(
    meeting: &Meeting,
    listener: &TcpListener,
    places: &[SocketAddr],
) -> Result<Vec<Option<TcpStream>>, String> {
    let mut streams: Vec<Option<TcpStream>> = (0..meeting.size).map(|_| None).collect();
    for (rank, place) in places.iter().enumerate().take(meeting.rank) {
        let connected = TcpStream::connect_timeout(place, left(meeting.deadline)).and_then(|mut stream| {
            hello(&mut stream, [meeting.group, meeting.rank as u64, 0])?;
            Ok(stream)
        });
        streams[rank] = Some(connected.map_err(|e| format!("rank {rank} is not at {place}: {e}"))?);
    }
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    while let Some(missing) = (meeting.rank + 1..meeting.size).find(|r| streams[*r].is_none()) {
        let late = || format!("rank {missing} did not connect");
        let (mut stream, _) = accept(listener, meeting.deadline)?.ok_or_else(late)?;
        let Ok(Some((rank, _))) = greeted(&mut stream, meeting.group, meeting.deadline) else { continue };
        if rank > meeting.rank && rank < meeting.size && streams[rank].is_none() {
            streams[rank] = Some(stream);
        }
    }
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting(rank: usize, size: usize) -> Meeting {
        Meeting { rank, size, group: 7, deadline: Instant::now() + Duration::from_secs(60) }
    }

    #[test]
    fn a_rank_that_meets_itself_looks_further() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let at = echo.local_addr().expect("an address");
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = echo.accept().expect("a rank");
            let mut said = [0; 32];
            stream.read_exact(&mut said).expect("who it is");
            stream.write_all(&said).expect("it listens");
        });
        assert!(introduce(&meeting(1, 2), at, 1).expect("it is answered").is_none());
        answers.join().expect("it answers");
    }

    #[test]
    fn a_rank_that_gave_up_comes_again_and_two_of_a_number_are_an_error() {
        for gives_up in [true, false] {
            let (_launcher, port) = listen_apart(0).expect("a port");
            let first = std::thread::spawn(move || gather(&meeting(0, 3), port, 1));
            let once = find(&meeting(1, 3), ("127.0.0.1", port), 2).expect("the first rank");
            let kept = (!gives_up).then_some(once);
            let deadline = Instant::now() + Duration::from_secs(if gives_up { 60 } else { 1 });
            let again = find(&Meeting { deadline, ..meeting(1, 3) }, ("127.0.0.1", port), 3);
            if kept.is_none() {
                let last = find(&meeting(2, 3), ("127.0.0.1", port), 4).expect("the first rank");
                let places = first.join().expect("it ends").expect("all have come");
                assert_eq!(places.iter().map(SocketAddr::port).collect::<Vec<_>>(), [1, 3, 4]);
                drop((again, last));
            } else {
                let error = first.join().expect("it ends").expect_err("there are two of them");
                assert!(error.contains("rank 1 of 3 has come twice"), "{error}");
            }
        }
    }

    #[test]
    fn no_rank_listens_where_the_first_one_is_looked_for() {
        for _ in 0..64 {
            let (_near, port) = listen_apart(0).expect("a port");
            let (_, own) = listen_apart(port).expect("a port");
            assert!(!(1..=PORTS).any(|n| port.checked_add(n) == Some(own)));
        }
    }

    #[test]
    fn addresses_are_told_from_names() {
        assert_eq!(host_and_port("node-3:29500"), Some(("node-3", 29500)));
        assert_eq!(host_and_port("[::1]:80"), Some(("::1", 80)));
        for name in ["", "ranks of process 7", "forward mlp dp=2", "a:b", "train: 5", ":80"] {
            assert_eq!(host_and_port(name), None, "{name}");
        }
    }
}
