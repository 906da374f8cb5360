// Runs one chapter's program: { program, args, files: [[name, bytes]] } comes in; { out } and { err } (text), { error },
// { exit, pictures: [[name, bytes]] } go out. The program sees three folders in memory: ".", /tmp and /data.
import { WASI, Fd, File, Directory, OpenFile, PreopenDirectory, wasi } from './wasi/index.js';

// A stream that passes on what is written to it; `terminal`: the program may take it for one, and then shows its progress.
class Stream extends Fd {
  constructor(name, terminal) { super(); this.name = name; this.terminal = terminal; this.decoder = new TextDecoder(); }
  fd_fdstat_get() {
    const stat = new wasi.Fdstat(this.terminal ? wasi.FILETYPE_CHARACTER_DEVICE : wasi.FILETYPE_REGULAR_FILE, 0);
    // a terminal cannot seek: that is how the C library knows one
    stat.fs_rights_base = BigInt(wasi.RIGHTS_FD_WRITE);
    return { ret: 0, fdstat: stat };
  }
  fd_filestat_get() {
    return { ret: 0, filestat: new wasi.Filestat(0n, this.terminal ? wasi.FILETYPE_CHARACTER_DEVICE : wasi.FILETYPE_REGULAR_FILE, 0n) };
  }
  fd_write(data) {
    postMessage({ [this.name]: this.decoder.decode(data, { stream: true }) });
    return { ret: 0, nwritten: data.byteLength };
  }
}

function pictures(folder, path, list) {
  for (const [name, entry] of folder.contents) {
    if (entry instanceof Directory) pictures(entry, path + name + '/', list);
    else if (name.endsWith('.png')) list.push([path + name, entry.data]);
  }
  return list;
}

onmessage = async ({ data: { program, args, files } }) => {
  try {
    const module = await WebAssembly.compileStreaming(fetch(`wasm/${program}.wasm`));
    const here = new PreopenDirectory('.', new Map());
    const given = new PreopenDirectory('/data', new Map(files.map(([name, bytes]) => [name, new File(bytes)])));
    const env = ['TMPDIR=/tmp', ...(files.length ? ['DTRAIN_DATA=/data'] : [])];
    const system = new WASI(['./' + program, ...args], env,
      [new OpenFile(new File([])), new Stream('out', false), new Stream('err', true), here, given,
        new PreopenDirectory('/tmp', new Map())], { debug: false });
    const instance = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: system.wasiImport });
    const exit = system.start(instance);
    postMessage({ exit, pictures: pictures(here.dir, '', []) });
  } catch (error) {
    postMessage({ error: String(error && error.message || error) });
  }
};
