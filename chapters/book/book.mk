# make book: the chapters and the header as pages, in build/book; open build/book/index.html, or serve the folder, and the
# pages of chapters 0 to 6 run their programs: cd build/book && python3 -m http.server
#
# Debian: pandoc, python3; for the programs in the pages what `make wasm` needs, and npm, which gets a WASI for browsers. A page
# whose program is not there shows instead what `make check` saw it print.
#   make deps-book     installs all of that
#   make test-pages    runs the programs in headless Chromium (Debian: chromium) and compares what they print. SHOTS=folder keeps pictures
BOOK_TOOLS = build/node_modules/@bjorn3/browser_wasi_shim/package.json
CAN_RUN    = $(shell command -v wasm-ld >/dev/null 2>&1 && command -v clang >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 && echo yes)

$(BOOK_TOOLS):
	@mkdir -p build
	npm install --prefix build --no-audit --no-fund @bjorn3/browser_wasi_shim@0.4.2 playwright-core@1.65.1

book: $(if $(CAN_RUN),wasm $(BOOK_TOOLS))
	python3 chapters/book/weave.py build/book

deps-book:
	sh chapters/get_deps.sh book

SHOTS =
test-pages: book
	node tests/test_pages.mjs $(SHOTS)

.PHONY: book deps-book test-pages
