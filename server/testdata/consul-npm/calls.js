// SPDX-License-Identifier: MPL-2.0

// Calls every method of the npm package "consul" at a server, and prints a line
// for each: its name, and "works" or the error. It exits with 1 if a call
// throws no error but has a wrong result.
//
// node calls.js HOST PORT CA CERT KEY
const fs = require("fs");
const https = require("https");
const Consul = require("consul");

const [host, port, ca, cert, key] = process.argv.slice(2);
const [caPEM, certPEM, keyPEM] = [ca, cert, key].map((f) => fs.readFileSync(f));
const agent = new https.Agent({ ca: caPEM, cert: certPEM, key: keyPEM, servername: "localhost", keepAlive: true });
const consul = new Consul({ host, port, secure: true, agent });

let wrong = false;

// call prints the result of f. ok checks the value of f.
async function call(name, f, ok = () => true) {
  try {
    const value = await f();
    if (ok(value)) {
      console.log(`${name}\tworks`);
    } else {
      wrong = true;
      console.log(`${name}\twrong result ${JSON.stringify(value)}`);
    }
    return value;
  } catch (err) {
    console.log(`${name}\t${String(err.message).replaceAll("\n", " ")}`);
  }
}

// changed returns the next value of a watch after change has run.
function changed(options, change) {
  return new Promise((resolve, reject) => {
    const watch = consul.watch({ ...options, backoffFactor: 100 });
    let first = true;
    watch.on("change", (value) => {
      if (first) {
        first = false;
        change().catch(reject);
        return;
      }
      watch.end();
      resolve(value);
    });
    watch.on("error", reject);
  });
}

async function main() {
  const self = await call("agent.self", () => consul.agent.self(), (v) => v.Config.Datacenter === "dc1");
  const node = self.Config.NodeName;
  await call("agent.members", () => consul.agent.members(), (v) => v.length === 1 && v[0].Name === node);
  await call("agent.reload", () => consul.agent.reload());
  await call("agent.join", () => consul.agent.join("192.0.2.1"));
  await call("agent.forceLeave", () => consul.agent.forceLeave("unknown"));

  await call("status.leader", () => consul.status.leader(), (v) => v.includes(":"));
  await call("status.peers", () => consul.status.peers(), (v) => v.length === 1);

  await call("kv.set", () => consul.kv.set("npm/a", "1"), (v) => v === true);
  await call("kv.get", () => consul.kv.get("npm/a"), (v) => v.Value === "1");
  await call("kv.keys", () => consul.kv.keys("npm/"), (v) => v.length === 1);
  await call("transaction.create", () => consul.transaction.create([{ KV: { Verb: "get", Key: "npm/a" } }]),
    (v) => v.Results.length === 1);
  await call("watch", () => changed({ method: consul.kv.get, options: { key: "npm/a" } }, () => consul.kv.set("npm/a", "2")),
    (v) => v.Value === "2");
  await call("kv.del", () => consul.kv.del("npm/a"), (v) => v === true);

  const session = await call("session.create", () => consul.session.create({ name: "npm", ttl: "15s" }), (v) => v.ID);
  await call("session.info", () => consul.session.info(session.ID), (v) => v.ID === session.ID);
  await call("session.list", () => consul.session.list(), (v) => v.length === 1);
  await call("session.node", () => consul.session.node(node), (v) => v.length === 1);
  await call("session.renew", () => consul.session.renew(session.ID), (v) => v[0].ID === session.ID);
  await call("session.destroy", () => consul.session.destroy(session.ID));

  await call("catalog.register", () => consul.catalog.register({
    node: "ext", address: "10.0.0.9", service: { service: "db", port: 5432 }, check: { name: "up", status: "passing" },
  }));
  await call("catalog.datacenters", () => consul.catalog.datacenters(), (v) => v[0] === "dc1");
  await call("catalog.node.list", () => consul.catalog.node.list(), (v) => v.some((n) => n.Node === "ext"));
  await call("catalog.node.services", () => consul.catalog.node.services("ext"), (v) => v.Services.db.Port === 5432);
  await call("catalog.service.list", () => consul.catalog.service.list(), (v) => v.db.length === 0);
  await call("catalog.service.nodes", () => consul.catalog.service.nodes("db"), (v) => v[0].Node === "ext");
  await call("catalog.connect.nodes", () => consul.catalog.connect.nodes("db"));

  const http = { http: `http://127.0.0.1:${port}/v1/status/leader`, interval: "1s", timeout: "1s" };
  await call("agent.service.register", () => consul.agent.service.register({ name: "web", port: 80, check: http }));
  await call("agent.service.list", () => consul.agent.service.list(), (v) => v.web.Port === 80);
  await call("agent.service.maintenance", () => consul.agent.service.maintenance({ id: "web", enable: true }));
  await call("health.checks", () => consul.health.checks("web"), (v) => v.length >= 1);
  await call("health.service", () => consul.health.service("db"), (v) => v[0].Node.Node === "ext");
  await call("health.node", () => consul.health.node("ext"), (v) => v[0].Status === "passing");
  await call("health.state", () => consul.health.state("critical"), (v) => v.some((c) => c.ServiceName === "web"));
  await call("agent.check.register", () => consul.agent.check.register({ name: "ttl", ttl: "1m" }));
  await call("agent.check.list", () => consul.agent.check.list(), (v) => v.ttl.Status === "critical");
  await call("agent.check.pass", () => consul.agent.check.pass("ttl"));
  await call("agent.check.warn", () => consul.agent.check.warn("ttl"));
  await call("agent.check.fail", () => consul.agent.check.fail("ttl"));
  await call("agent.check.deregister", () => consul.agent.check.deregister("ttl"));
  await call("agent.maintenance", () => consul.agent.maintenance({ enable: true, reason: "test" }));
  await call("agent.service.deregister", () => consul.agent.service.deregister("web"));
  await call("catalog.deregister", () => consul.catalog.deregister({ node: "ext" }));

  await call("event.fire", () => consul.event.fire("deploy"));
  await call("event.list", () => consul.event.list());
  for (const [name, f] of Object.entries({
    list: () => consul.query.list(), create: () => consul.query.create({ name: "q", service: { service: "db" } }),
    get: () => consul.query.get("id"), update: () => consul.query.update({ query: "id", service: { service: "db" } }),
    destroy: () => consul.query.destroy("id"), execute: () => consul.query.execute("q"),
    explain: () => consul.query.explain("q"),
  })) {
    await call("query." + name, f);
  }
  await call("acl.bootstrap", () => consul.acl.bootstrap());
  await call("acl.replication", () => consul.acl.replication());
  for (const [name, f] of Object.entries({
    create: () => consul.acl.legacy.create(), update: () => consul.acl.legacy.update({ id: "id" }),
    destroy: () => consul.acl.legacy.destroy("id"), info: () => consul.acl.legacy.info("id"),
    clone: () => consul.acl.legacy.clone("id"), list: () => consul.acl.legacy.list(),
  })) {
    await call("acl.legacy." + name, f);
  }
  const withToken = new Consul({ host, port, secure: true, agent, defaults: { token: "5e1cf4f1-0000" } });
  await call("a call with a token", () => withToken.kv.get("npm/a"));
  agent.destroy();
  process.exit(wrong ? 1 : 0);
}

main();
