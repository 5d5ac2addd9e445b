"use client";
import dynamic from "next/dynamic";

export default dynamic(() => import("./chat.jsx"), { ssr: false }); // the chat's messages are in the browser
