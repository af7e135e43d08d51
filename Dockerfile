# The onelock program on a small image: docker build -t onelock . && docker run --rm -e ONELOCK_STORE=redis://host onelock list
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev make cmake protobuf-compiler libprotobuf-dev
WORKDIR /src
COPY . .
ARG FEATURES=etcd
RUN cargo build --release --locked -p onelock-cli --features "$FEATURES"

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/onelock /usr/local/bin/onelock
USER nobody
ENTRYPOINT ["onelock"]
